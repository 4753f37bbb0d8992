"""Sampling sessions, and requests to sample on their way to the worker and back."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from tinker_engine.backends.messages import SAMPLING, Cancel, Done, Failed, Progress, Sample, ToWorker
from tinker_engine.core import journal
from tinker_engine.core.checkpoints import Checkpoints
from tinker_engine.core.futures import Futures
from tinker_engine.core.records import Op, Sampler
from tinker_engine.core.training import MOST_ATTEMPTS
from tinker_engine.errors import EngineError, InputError, NotFoundError, WorkerLostError
from tinker_engine.store.database import Database

StreamEvent = Progress | Done


class Sampling:
    def __init__(
        self,
        database: Database,
        futures: Futures,
        checkpoints: Checkpoints,
        *,
        send: Callable[[ToWorker], None],
        model_folder: Callable[[str], Path],
    ):
        self._database = database
        self._futures = futures
        self._checkpoints = checkpoints
        self._send = send
        self._model_folder = model_folder
        self.samplers = {sampler.id: sampler for sampler in database.read_now(journal.load(Sampler))}
        self._sent: dict[str, Op] = {}
        self._streams: dict[str, tuple[Sample, asyncio.Queue[StreamEvent | EngineError]]] = {}

    @property
    def depth(self) -> int:
        return len(self._sent) + len(self._streams)

    def find(self, sampler_id: str, owner: str) -> Sampler:
        sampler = self.samplers.get(sampler_id)
        if sampler is None or sampler.owner != owner:
            raise NotFoundError(f"you have no sampling session {sampler_id[:200]!r}")
        return sampler

    def add(self, sampler: Sampler) -> None:
        self.samplers[sampler.id] = sampler

    def drop(self, samplers: list[Sampler]) -> None:
        for sampler in samplers:
            self.samplers.pop(sampler.id, None)

    def enqueue(self, op: Op) -> None:
        sampler = self.samplers.get(op.lane)
        try:
            if sampler is None:
                raise NotFoundError(f"the sampling session {op.lane} is gone")
            message = self._message(op, sampler)
        except NotFoundError as error:
            self._sent.pop(op.request_id, None)  # if the worker had it before it died
            self._futures.fail(op, str(error), "user")
            return
        self._sent[op.request_id] = op
        self._send(message)

    def cancel(self, op: Op) -> None:
        if self._sent.pop(op.request_id, None) is not None:
            self._send(Cancel(op.request_id))
            self._futures.fail(op, "cancelled by the client", "user")

    async def stream(
        self,
        name: str,
        owner: str,
        base_model: str,
        snapshot: str | None,
        body: bytes,
        seed: int,
        *,
        progress: bool,
    ) -> AsyncGenerator[StreamEvent, None]:
        """A request that lives as long as somebody listens; it is not journalled."""
        folder = self._checkpoints.folder(self._checkpoints.get(snapshot).id) if snapshot else None
        model_folder = self._model_folder(base_model)
        message = Sample(name, owner, base_model, model_folder, snapshot, folder, body, seed, stream=progress)
        events: asyncio.Queue[StreamEvent | EngineError] = asyncio.Queue()
        self._streams[name] = message, events
        try:
            self._send(message)
            while True:
                event = await events.get()
                if isinstance(event, EngineError):
                    raise event
                yield event
                if isinstance(event, Done):
                    return
        finally:
            if self._streams.pop(name, None) is not None:
                self._send(Cancel(name))

    # --- from the worker -----------------------------------------------------------------------------

    def on_done(self, message: Done) -> None:
        if (stream := self._streams.pop(message.op, None)) is not None:
            stream[1].put_nowait(message)
        elif (op := self._sent.pop(message.op, None)) is not None:
            self._futures.succeed(op, message.result, message.media_type)

    def on_failed(self, message: Failed) -> None:
        if (stream := self._streams.pop(message.op, None)) is not None:
            user = message.category == "user"
            stream[1].put_nowait(_Refused(message.message) if user else EngineError(message.message))
        elif (op := self._sent.pop(message.op, None)) is not None:
            self._futures.fail(op, message.message, message.category)

    def on_progress(self, message: Progress) -> None:
        if (stream := self._streams.get(message.op)) is not None:
            stream[1].put_nowait(message)

    def on_lost(self, running: str | None, reason: str) -> list[Op]:
        """Streams end; journalled requests are sent again. Those that may have been the cause are returned."""
        for _, events in self._streams.values():
            events.put_nowait(WorkerLostError(f"the compute process died ({reason}); ask again"))
        self._streams.clear()
        suspects = list(self._sent.values()) if running == SAMPLING else []
        for op in suspects:
            op.attempts += 1
            if op.attempts >= MOST_ATTEMPTS:
                del self._sent[op.request_id]
                self._futures.fail(
                    op, f"the compute process died {op.attempts} times while it sampled this", "server"
                )
        return suspects

    def fail_all(self, reason: str) -> None:
        for op in self._sent.values():
            self._futures.fail(op, reason, "server")
        self._sent.clear()

    def send_all_again(self) -> None:
        for op in list(self._sent.values()):
            self.enqueue(op)
        for message, _ in self._streams.values():  # they came while there was nobody to send them to
            self._send(message)

    def _message(self, op: Op, sampler: Sampler) -> Sample:
        folder = None
        if sampler.snapshot is not None:
            folder = self._checkpoints.folder(self._checkpoints.get(sampler.snapshot).id)
        return Sample(
            op.request_id,
            sampler.session_id,
            sampler.base_model,
            self._model_folder(sampler.base_model),
            sampler.snapshot,
            folder,
            op.body or b"",
            op.options["seed"],
        )


class _Refused(InputError):
    """The worker's words, which already name the field."""

    def __init__(self, message: str):
        field, _, rest = message.partition(": ")
        super().__init__(field, rest or message)
