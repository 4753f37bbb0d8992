"""Spans: around functions, around blocks, around a training iteration. And switching the event file on and off."""

import atexit
import contextlib
import functools
import inspect
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, TypeVar

from tinker_cookbook.utils.context_vars import bound
from tinker_cookbook.utils.trace.collector import TraceCollector
from tinker_cookbook.utils.trace.events import ScopeContext, trace_context
from tinker_cookbook.utils.trace.sdk import SdkPatch
from tinker_cookbook.utils.trace.window import IterationWindow, collect_into, current_window

logger = logging.getLogger(__name__)
F = TypeVar("F", bound=Callable[..., Any])

# --- the event file ---------------------------------------------------------------------------------------

_collector: TraceCollector | None = None
_sdk = SdkPatch()


def trace_init(flush_interval_sec: float = 1.0, output_file: str = "trace_events.jsonl") -> None:
    """Write the events of all scopes, and of the SDK's async calls, to a file from now on."""
    global _collector
    if _collector is not None:
        logger.warning("tracing again, to %s: the trace so far is closed", output_file)
        trace_shutdown()
    _collector = TraceCollector(flush_interval_sec, output_file)
    _sdk.apply(_scope_async)
    atexit.register(trace_shutdown)


def trace_shutdown() -> None:
    """Write what is left, and take the scopes off the SDK. Does nothing without `trace_init`."""
    global _collector
    collector, _collector = _collector, None
    _sdk.undo()
    atexit.unregister(trace_shutdown)
    if collector is not None:
        collector.shutdown()


def _forget_in_child() -> None:
    """A fork has the collector and not its thread; the parent writes what was queued before."""
    global _collector
    _collector = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


# --- spans ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def scope_span_sync(name: str) -> Generator[None, None, None]:
    """Time this block; its span counts whether it ends well or not."""
    window = current_window()
    with _events(name):
        start = time.perf_counter()
        try:
            yield
        finally:
            if window is not None:
                window.record_span(name, start, time.perf_counter())


@contextlib.contextmanager
def _events(name: str, **attributes: Any) -> Generator[None, None, None]:
    context = ScopeContext(attributes)
    collector = _collector
    call = None if collector is None else collector.begin(name, context)
    with bound(trace_context, context):
        try:
            yield
        finally:
            if collector is not None and call is not None:
                collector.end(name, call)


@contextlib.asynccontextmanager
async def scope_span(name: str) -> AsyncGenerator[None, None]:
    """A span over what is inside, by this name."""
    with scope_span_sync(name):
        yield


def scope(func: F) -> F:
    """Time each call, under the function's name."""
    return _scope_async(func) if inspect.iscoroutinefunction(func) else _scope_sync(func)


def _scope_async(func: F) -> F:
    @functools.wraps(func)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        with scope_span_sync(func.__name__):
            return await func(*args, **kwargs)

    return wrapper  # pyright: ignore[reportReturnType]


def _scope_sync(func: F) -> F:
    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with scope_span_sync(func.__name__):
            return func(*args, **kwargs)

    return wrapper  # pyright: ignore[reportReturnType]


@contextlib.contextmanager
def trace_iteration(step: int) -> Generator[IterationWindow, None, None]:
    """Collect the spans of this block, and its whole time; within another one, the inner collects."""
    with collect_into(IterationWindow()) as window, _events("iteration", step=step):
        start = time.perf_counter()
        try:
            yield window
        finally:
            window.total_time = time.perf_counter() - start


def get_scope_context() -> ScopeContext:
    """Of the innermost running scope; outside of any, one that nobody reads."""
    return trace_context.get() or ScopeContext()


def update_scope_context(values: dict[str, Any]) -> None:
    """Note `values` with the end event of the running scope."""
    get_scope_context().attributes.update(values)
