"""The checkpoints of a running loop: periodic ones, a rolling one against crashes, and the final one."""

import asyncio
import logging
import time
from collections.abc import Callable

import tinker

from tinker_cookbook.checkpoint_utils._blocking import blocking
from tinker_cookbook.checkpoint_utils.cadence import Cadence
from tinker_cookbook.checkpoint_utils.records import CheckpointRecord
from tinker_cookbook.checkpoint_utils.rolling import RollingCheckpoint, failures_logged
from tinker_cookbook.checkpoint_utils.saving import LoopState, Saving
from tinker_cookbook.stores.training_store import TrainingRunStore

logger = logging.getLogger(__name__)

Paths = dict[str, str]


class CheckpointManager:
    """Call `maybe_save_async` once per step, before the batch that `loop_state["batch"]` names is submitted.

    A periodic checkpoint (state and weights for sampling, kept for `ttl_seconds`) is due by step, token or time. A
    rolling one (state only, short-lived) is saved in the background on steps without a periodic one, and replaces the
    one before. At most one save is under way in the background, so that records are written in the order of steps.
    """

    def __init__(
        self,
        training_client: tinker.TrainingClient,
        service_client: tinker.ServiceClient,
        log_path: str,
        save_every: int = 0,
        save_every_tokens: int = 0,
        save_every_seconds: float = 0.0,
        ttl_seconds: int | None = 604800,
        rolling_save_every: int = 0,
        rolling_ttl_seconds: int = 7200,
        store: TrainingRunStore | None = None,
        async_periodic_saves: bool = False,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._training_client = training_client
        self._store = store or TrainingRunStore.from_uri(log_path)
        self._cadence = Cadence(save_every, save_every_tokens, save_every_seconds, clock)
        self._ttl_seconds = ttl_seconds
        self._in_background = async_periodic_saves
        self._last_periodic_step: int | None = None
        self._rolling_every = rolling_save_every
        self._rolling_ttl_seconds = rolling_ttl_seconds
        self._rolling = RollingCheckpoint(service_client, self._store)
        self._pending: asyncio.Task[None] | None = None

    def restore_last_saved_tokens(self, last_saved_tokens: int) -> None:
        """Count tokens from the last periodic save of the process before."""
        self._cadence.saved_tokens = last_saved_tokens

    def resume_from(self, record: CheckpointRecord) -> None:
        """Count tokens as if the process had not been interrupted."""
        tokens = record.get("last_saved_tokens", record.get("elapsed_tokens", 0))
        self.restore_last_saved_tokens(int(tokens))

    def should_save_periodic(self, step: int, *, elapsed_tokens: int = 0) -> bool:
        return self._cadence.due(step, elapsed_tokens)

    def should_save(self, step: int, *, elapsed_tokens: int = 0) -> bool:
        """Whether `maybe_save_async` would save anything."""
        return self.should_save_periodic(step, elapsed_tokens=elapsed_tokens) or self._rolling_due(
            step, {"elapsed_tokens": elapsed_tokens}
        )

    async def maybe_save_async(
        self, step: int, loop_state: LoopState, *, elapsed_tokens: int = 0
    ) -> Paths | None:
        """Returns the paths of a periodic checkpoint that was saved in the foreground.

        A periodic save that failed in the background is raised by the next call.
        """
        if self._pending is not None and self._pending.done():
            await self._settle()
        if elapsed_tokens:
            loop_state = {"elapsed_tokens": elapsed_tokens, **loop_state}
        if not self.should_save_periodic(step, elapsed_tokens=elapsed_tokens):
            await self.maybe_save_rolling_async(step, loop_state)
            return None
        if not self._in_background:
            return await self.save_periodic_async(step, loop_state)
        saving = await self._ask_periodic(step, loop_state)
        await self._queued()
        self._pending = asyncio.create_task(self._record(saving, loop_state))
        return None

    async def save_periodic_async(self, step: int, loop_state: LoopState) -> Paths:
        saving = await self._ask_periodic(step, loop_state)
        return await saving.record(self._store, loop_state)

    async def maybe_save_rolling_async(self, step: int, loop_state: LoopState) -> None:
        """A failure is logged and not raised: the rolling checkpoint is a help, not a result."""
        if not self._rolling_due(step, loop_state):
            return
        await self._settle()
        loop_state = {**loop_state, "rolling": True}
        if self._cadence.saved_tokens:
            loop_state["last_saved_tokens"] = self._cadence.saved_tokens
        with failures_logged(f"save the rolling checkpoint of step {step}"):
            saving = await Saving.ask(self._training_client, _name(step), "state", self._rolling_ttl_seconds)
            self._pending = asyncio.create_task(self._rolling.replace(saving, loop_state))

    async def save_final_async(self, loop_state: LoopState) -> Paths:
        """Never expires. Saved even if a save in the background failed, which is raised afterwards."""
        failure = await self._settled()
        saving = await Saving.ask(self._training_client, "final", "both", None)
        paths = await saving.record(self._store, {**loop_state, "final": True})
        await self.finalize_async()
        if failure is not None:
            raise failure
        return paths

    async def finalize_async(self) -> None:
        """Wait for what is under way, and delete the rolling checkpoint."""
        failure = await self._settled()
        if self._rolling_every > 0:
            await self._rolling.delete()
        if failure is not None:
            raise failure

    maybe_save = blocking(maybe_save_async)
    save_periodic = blocking(save_periodic_async)
    maybe_save_rolling = blocking(maybe_save_rolling_async)
    save_final = blocking(save_final_async)
    finalize = blocking(finalize_async)

    async def _ask_periodic(self, step: int, loop_state: LoopState) -> Saving:
        await self._settle()
        self._cadence.saved(loop_state.get("elapsed_tokens"))
        self._last_periodic_step = step
        return await Saving.ask(self._training_client, _name(step), "both", self._ttl_seconds)

    async def _queued(self) -> None:
        """Wait until a training step submitted now comes after all saves asked for.

        The SDK gives a save of the state its place in the queue at once, but a save for sampling only when its own
        thread comes to it. That thread serves this short request later.
        """
        await self._training_client.get_info_async()

    def _rolling_due(self, step: int, loop_state: LoopState) -> bool:
        if self._rolling_every <= 0 or step <= 0 or step % self._rolling_every != 0:
            return False
        tokens = loop_state.get("elapsed_tokens", 0)
        return step != self._last_periodic_step and not self.should_save_periodic(step, elapsed_tokens=tokens)

    async def _record(self, saving: Saving, loop_state: LoopState) -> None:
        await saving.record(self._store, loop_state)

    async def _settle(self) -> None:
        if (failure := await self._settled()) is not None:
            raise failure

    async def _settled(self) -> BaseException | None:
        """Wait for the save in the background; its failure, if it failed."""
        task = self._pending
        if task is None:
            return None
        if not task.done():
            await asyncio.wait([task])
        self._pending = None
        if task.cancelled():
            logger.warning("a save in the background was cancelled before it was written down")
            return None
        return task.exception()


def _name(step: int) -> str:
    return f"{step:06d}"
