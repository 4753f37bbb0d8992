"""Scopes around every public async method of the SDK's training and sampling clients."""

import inspect
import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

_MISSING = object()


class SdkPatch:
    """Methods are found by looking, not from a list: each release of the SDK brings new ones."""

    def __init__(self) -> None:
        self._patched: list[tuple[type, str, Any, Any]] = []

    def apply(self, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        if self._patched:
            return
        import tinker

        for client in (tinker.TrainingClient, tinker.SamplingClient):
            for name in dir(client):
                member = inspect.getattr_static(client, name)
                if not name.startswith("_") and _is_async(member):
                    self._replace(client, name, _wrap_member(member, wrap))

    def undo(self) -> None:
        while self._patched:
            client, name, before, ours = self._patched.pop()
            if vars(client).get(name) is not ours:
                logger.warning("%s.%s was replaced by someone else and is left so", client.__name__, name)
            elif before is _MISSING:
                delattr(client, name)
            else:
                setattr(client, name, before)

    def _replace(self, client: type, name: str, ours: Any) -> None:
        self._patched.append((client, name, vars(client).get(name, _MISSING), ours))
        setattr(client, name, ours)


def _is_async(member: Any) -> bool:
    """Through decorators as well, such as the one that marks a method deprecated."""
    function = member.__func__ if isinstance(member, staticmethod | classmethod) else member
    return inspect.isfunction(function) and inspect.iscoroutinefunction(inspect.unwrap(function))


def _wrap_member(member: Any, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
    if isinstance(member, staticmethod | classmethod):
        return type(member)(wrap(member.__func__))
    return wrap(member)
