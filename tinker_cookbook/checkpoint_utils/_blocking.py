"""The blocking twin of an async function, so that the work is written once."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from tinker_cookbook.exceptions import ConfigurationError

P = ParamSpec("P")
R = TypeVar("R")


def blocking(work: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, R]:
    """`save = blocking(save_async)`. Returns when all that the work started is done, too: no loop is left to do it."""

    name = work.__name__.removesuffix("_async")

    @functools.wraps(work)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if _in_event_loop():
            raise ConfigurationError(
                f"{name}() blocks, and this is called inside a running event loop; "
                f"write `await {work.__name__}(...)` here"
            )
        return asyncio.run(_to_the_end(work(*args, **kwargs)))

    run.__name__ = name
    return run


async def _to_the_end(work: Coroutine[Any, Any, R]) -> R:
    result = await work
    started = asyncio.all_tasks() - {asyncio.current_task()}
    if started:
        await asyncio.wait(started)  # their failures stay in the tasks, for whoever keeps them
    return result


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
