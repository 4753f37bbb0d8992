"""Many coroutines at once, of which none is left behind."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def gather_or_cancel(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All results, in order. The first failure cancels the others, and is raised as it is when they have ended.

    A `TaskGroup` wraps it in a group, which hides it from an `except` that names it.
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await cancel_all(tasks)


async def cancel_all(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel those that still run, and wait until they have cleaned up."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)


async def finish_despite_cancel(coroutine: Coroutine[Any, Any, T]) -> T:
    """Go on to the end also when cancelled, and be cancelled then: for what must not be left half done."""
    task = asyncio.ensure_future(coroutine)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait([task])
        raise
