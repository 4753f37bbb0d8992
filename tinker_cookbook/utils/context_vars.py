"""Context variables that are set for the length of a block."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def bound(variable: ContextVar[T], value: T) -> Iterator[T]:
    token = variable.set(value)
    try:
        yield value
    finally:
        # A coroutine that is collected unfinished is closed in some other context; its own, and so the variable's
        # value in it, is gone by then.
        with contextlib.suppress(ValueError):
            variable.reset(token)
