"""Whatever becomes of a rollout: nothing it started runs on, nothing it made is left behind, its error is the one raised."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable
from typing import Any

from tinker_cookbook.rl.types import Env, EnvGroupBuilder

logger = logging.getLogger(__name__)

CLEANUP_SECONDS = 300.0
"""How long a clean-up may take, and a cancelled task until it ends."""


async def release(envs: Iterable[Env]) -> None:
    """All of them, also if one cannot be: that is logged, for the episodes themselves may be fine."""
    await asyncio.gather(*(_release(env) for env in envs))


async def _release(env: Env) -> None:
    try:
        async with asyncio.timeout(CLEANUP_SECONDS):
            await env.cleanup()
    except Exception:
        logger.warning("%s could not be cleaned up", type(env).__name__, exc_info=True)


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel those that still run and wait for their end. Nobody asks any more what came of them."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    if not tasks:
        return
    ended, still = await asyncio.wait(tasks, timeout=CLEANUP_SECONDS)
    if still:
        logger.error("%d rollouts run on %d s after they were cancelled", len(still), CLEANUP_SECONDS)
    for task in ended:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.debug("%s failed as well: %r", task.get_name(), error)


@contextlib.asynccontextmanager
async def cleaned_up(builder: EnvGroupBuilder) -> AsyncIterator[None]:
    """`builder.cleanup()` after this block. If both fail, the error of the block is the one to raise."""
    try:
        yield
    except BaseException:
        try:
            await _cleanup(builder)
        except Exception:
            logger.warning(
                "%s.cleanup() failed, besides the error that is raised", _name(builder), exc_info=True
            )
        raise
    await _cleanup(builder)


async def _cleanup(builder: EnvGroupBuilder) -> None:
    timer = asyncio.timeout(CLEANUP_SECONDS)
    try:
        async with timer:
            await builder.cleanup()
    except TimeoutError as error:
        if not timer.expired():
            raise
        raise TimeoutError(f"{_name(builder)}.cleanup() took longer than {CLEANUP_SECONDS:.0f} s") from error


def _name(builder: EnvGroupBuilder) -> str:
    return type(builder).__name__
