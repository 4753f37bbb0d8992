"""Old names that still work, say what to use instead, and stop working when they said they would."""

import functools
import importlib
import inspect
import warnings
from collections.abc import Callable
from typing import Any

from packaging.version import Version

import tinker_cookbook


def warn_deprecated(
    name: str, *, removal_version: str | None = None, message: str = "", stacklevel: int = 2
) -> None:
    """A DeprecationWarning at the caller's line; a RuntimeError once this version has reached `removal_version`.

    `stacklevel` counts as in `warnings.warn`, from the function that calls this one.
    """
    if removal_version is not None and Version(tinker_cookbook.__version__) >= Version(removal_version):
        raise RuntimeError(
            f"{name} was to go in version {removal_version}, which is here. {message}".rstrip()
        )
    when = f" and will go in version {removal_version}" if removal_version else ""
    text = f"{name} is deprecated{when}. {message}".rstrip()
    warnings.warn(text, DeprecationWarning, stacklevel=stacklevel + 1)


def deprecated(
    _func: Callable[..., Any] | None = None, *, message: str = "", removal_version: str | None = None
) -> Any:
    """Decorator of a function or class, bare or with arguments: warns at each call, or when an object is made."""

    def decorate(target: Any) -> Any:
        if not isinstance(target, type):
            return _warning_before(target, target.__qualname__, message, removal_version)
        target.__init__ = _warning_before(target.__init__, target.__qualname__, message, removal_version)
        return target

    return decorate if _func is None else decorate(_func)


def _warning_before(function: Callable, name: str, message: str, removal_version: str | None) -> Callable:
    def warn() -> None:
        warn_deprecated(name, removal_version=removal_version, message=message, stacklevel=3)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def later(*args: Any, **kwargs: Any) -> Any:
            warn()
            return await function(*args, **kwargs)

        return later

    @functools.wraps(function)
    def at_once(*args: Any, **kwargs: Any) -> Any:
        warn()
        return function(*args, **kwargs)

    return at_once


def make_deprecated_module_getattr(
    module_name: str, attrs: dict[str, tuple[str, str | None]]
) -> Callable[[str], Any]:
    """A `__getattr__` for the module of that name.

    `attrs`: old name -> (where it is now, as "package.module.name", and the version that removes the old name or None).
    """

    def module_getattr(name: str) -> Any:
        if name not in attrs:
            raise AttributeError(f"module {module_name!r} has no attribute {name!r}")
        new, removal_version = attrs[name]
        warn_deprecated(
            f"{module_name}.{name}", removal_version=removal_version, message=f"Use {new}.", stacklevel=2
        )
        new_module, _, new_name = new.replace(":", ".").rpartition(".")
        return getattr(importlib.import_module(new_module), new_name)

    return module_getattr
