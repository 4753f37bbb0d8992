"""The rolling checkpoint: a fresh state to go on from after a crash."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import tinker

from tinker_cookbook.checkpoint_utils.rest import rest_client
from tinker_cookbook.checkpoint_utils.saving import LoopState, Saving
from tinker_cookbook.stores.training_store import TrainingRunStore

logger = logging.getLogger(__name__)


class RollingCheckpoint:
    """At most one: a new one is saved before the old one goes, also that of a process that died."""

    def __init__(self, service_client: tinker.ServiceClient, store: TrainingRunStore) -> None:
        self._service_client = service_client
        self._store = store
        self._path: str | None = None
        self._looked_for_leftover = False

    async def replace(self, saving: Saving, loop_state: LoopState) -> None:
        with failures_logged(f"save the rolling checkpoint {saving.name}"):
            previous = await self._current()
            paths = await saving.record(self._store, loop_state)
            self._path = paths["state_path"]
            if previous is not None and previous != self._path:
                await self._delete(previous)

    async def delete(self) -> None:
        with failures_logged("delete the rolling checkpoint"):
            path = await self._current()
            if path is not None:
                await self._delete(path)
            self._path = None

    async def _current(self) -> str | None:
        """Ours, or the last one in the file, which is that of the process we resumed."""
        if not self._looked_for_leftover:
            records = await asyncio.to_thread(self._store.read_checkpoint_records)
            rolling = [record.state_path for record in records if record.get("rolling", False)]
            self._path = rolling[-1] if rolling else None
            self._looked_for_leftover = True
        return self._path

    async def _delete(self, path: str) -> None:
        with failures_logged(f"delete the rolling checkpoint {path}"):
            try:
                await rest_client(self._service_client).delete_checkpoint_from_tinker_path_async(path)
            except tinker.NotFoundError:
                logger.info("the rolling checkpoint %s was gone already", path)


@contextmanager
def failures_logged(what: str) -> Iterator[None]:
    """The boundary around the rolling checkpoint: whatever goes wrong with it must not end the training."""
    try:
        yield
    except Exception:
        logger.warning("could not %s; training goes on", what, exc_info=True)
