"""The engine: accepts requests, hands them to the compute process, keeps what must be kept.

Runs in the api process and never computes. The compute process may die at any time; `_on_end` starts another one
and everything unanswered is done again from the journal.
"""

import asyncio
import contextlib
import json
import logging
import secrets
import time
import uuid
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tinker_engine.backends.messages import (
    Closed,
    Done,
    Failed,
    Forget,
    FromWorker,
    Hello,
    Progress,
    Running,
    SaveAll,
    Saved,
    Stats,
    Stopped,
    Trouble,
)
from tinker_engine.core import journal
from tinker_engine.core.checkpoints import EPHEMERAL, Checkpoints, check_name, expiry
from tinker_engine.core.compute import Compute
from tinker_engine.core.futures import Futures
from tinker_engine.core.metrics import Metrics
from tinker_engine.core.rates import Rates
from tinker_engine.core.records import Checkpoint, Op, OpKind, Run, Sampler, Session
from tinker_engine.core.sampling import Sampling, StreamEvent
from tinker_engine.core.settings import Settings
from tinker_engine.core.training import Training, new_checkpoint_id
from tinker_engine.errors import InputError, NotFoundError, StorageError
from tinker_engine.store.database import Database
from tinker_engine.store.folders import remove_unknown
from tinker_engine.wire.create_model import CreateModelCall

log = logging.getLogger(__name__)

MOST_FALSE_STARTS = 3  # of the compute process, one after the other, before those who wait are told
HOUSEKEEPING_SECONDS = 60.0
STOP_SECONDS = 60.0


class Engine:
    def __init__(self, settings: Settings):
        self.settings = settings
        data, limits = settings.data, settings.limits
        self.database = Database(settings.database_url, durable=settings.durable)
        self.futures = Futures(
            self.database,
            data / "bodies",
            durable=settings.durable,
            most_queued=limits.queued_requests,
            most_bytes=limits.queued_bytes,
        )
        self.checkpoints = Checkpoints(self.database, data, self._forget_snapshots)
        self.compute = Compute(
            data,
            durable=settings.durable,
            run_bytes=limits.run_bytes,
            on_message=self._on_message,
            on_end=self._on_end,
        )
        send = self.compute.send
        self.sampling = Sampling(
            self.database, self.futures, self.checkpoints, send=send, model_folder=self.model_folder
        )
        self.training = Training(
            self.database,
            data,
            self.futures,
            self.checkpoints,
            send=send,
            worker_alive=lambda: self.compute.alive,
            model_folder=self.model_folder,
            add_sampler=self.sampling.add,
        )
        self.sessions = {session.id: session for session in self.database.read_now(journal.load(Session))}
        self.stats: dict[str, float] = {}
        self.rates = Rates()
        self.metrics = Metrics(self)
        self.futures.on_answer = self.metrics.answered
        self.restarts = 0
        self._room: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._running: str | None = None
        self._false_starts = 0
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()

    # --- life ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        data = self.settings.data
        pending = self.futures.restore()
        remove_unknown(data / "checkpoints", self.checkpoints.refs())
        remove_unknown(data / "autosaves", self.training.refs())
        remove_unknown(data / "bodies", self.database.read_now(journal.body_refs))
        await self.compute.start()
        for op in pending:
            (self.sampling if op.kind == "sample" else self.training).enqueue(op)
        if pending:
            log.info("%d requests from before the restart go on", len(pending))
        self._background(self._keep_house())

    def begin_stop(self) -> None:
        """Let go of everybody who waits; their clients ask again and find the answer here or after a restart."""
        self._stopping = True
        self.futures.wake_all("the engine is ending")

    async def stop(self) -> None:
        self.begin_stop()
        for task in self._tasks:
            task.cancel()
        self.compute.send(SaveAll())
        await self.compute.stop(STOP_SECONDS)
        self.database.close()

    def _background(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a background task failed", exc_info=error)

    # --- the compute process -------------------------------------------------------------------------

    def _on_message(self, message: FromWorker) -> None:
        match message:
            case Done():
                if not self.training.on_done(message):
                    self.sampling.on_done(message)
            case Failed():
                self._log_failure(message)
                if not self.training.on_failed(message):
                    self.sampling.on_failed(message)
            case Progress():
                self.sampling.on_progress(message)
            case Running():
                self._running = message.op
            case Closed():
                self.training.on_closed(message)
            case Saved():
                self.training.on_saved(message)
            case Stats():
                self.stats = message.values
                self.rates.add(time.monotonic(), message.values)
            case Trouble():
                log.error("%s", message.message)
            case Hello():
                self._false_starts = 0
                log.info("the compute process is ready", extra={"pid": message.pid})
                if not self._room.done():
                    self._room.set_result(message.room)
            case Stopped():
                pass

    def _on_end(self, reason: str) -> None:
        if self._stopping:
            return
        log.error("the compute process died (%s) while it was at: %s", reason, self._running)
        self.restarts += 1
        self._false_starts += 1
        suspects = self.training.on_lost(self._running) + self.sampling.on_lost(self._running, reason)
        if suspects:
            self.database.submit(journal.count_attempts(suspects))
        self._running = None
        self._background(self._replace_compute(reason))

    async def _replace_compute(self, reason: str) -> None:
        """At once the first time; a process that cannot even start is not tried without a pause."""
        if self._false_starts > MOST_FALSE_STARTS:
            log.error("the compute process cannot be started; trying again in a while")
            self.training.fail_all(f"the compute process cannot be started ({reason}); see the engine's log")
            self.sampling.fail_all(f"the compute process cannot be started ({reason}); see the engine's log")
            await asyncio.sleep(min(60.0, 2.0**self._false_starts))
        try:
            await self.compute.start()
        except OSError as error:  # no memory for another process, say
            self._on_end(f"it could not be started: {error}")
            return
        self.sampling.send_all_again()
        self.training.pump_all()

    def _log_failure(self, message: Failed) -> None:
        if message.category == "server":
            log.error("%s failed: %s", message.op, message.message, extra={"traceback": message.trace})

    def _forget_snapshots(self, snapshots: list[str]) -> None:
        self.compute.send(Forget(snapshots))

    # --- models --------------------------------------------------------------------------------------

    def model_folder(self, name: str) -> Path:
        folder = self.settings.models.get(name)
        if folder is None:
            known = ", ".join(self.settings.models)
            raise InputError(
                "base_model",
                f"{name[:200]!r} is not served here; there is: {known}. To add one: tinker-engine pull NAME, or serve "
                "--model FOLDER, and start the engine again",
            )
        return folder

    # --- sessions ------------------------------------------------------------------------------------

    async def create_session(self, owner: str, details: dict[str, Any]) -> Session:
        now = time.time()
        session = Session(str(uuid.uuid4()), owner, now, now, None, details)
        await self.database.write(journal.add(session))
        self.sessions[session.id] = session
        return session

    def session(self, session_id: str, owner: str) -> Session:
        session = self.sessions.get(session_id)
        if session is None or session.owner != owner:
            raise NotFoundError(f"you have no session {session_id[:200]!r}")
        return session

    async def finish_session(self, session: Session, why: str) -> None:
        session.finished = why
        await self.database.write(journal.store(session))

    # --- training ------------------------------------------------------------------------------------

    async def create_model(self, owner: str, call: CreateModelCall, identity: bytes) -> Op:
        session = self.session(call.session_id, owner)
        self.model_folder(call.base_model)
        seed = call.lora["seed"]
        now = time.time()
        run = Run(
            f"{session.id}:train:{call.model_seq_id}",
            session.id,
            owner,
            call.base_model,
            call.lora | {"seed": secrets.randbits(63) if seed is None else seed},
            await self._activation_room(),
            dict(call.user_metadata) if call.user_metadata is not None else None,
            now,
            now,
        )
        op, made = await self.futures.accept(
            run.id, 0, owner, "create", b"", dict, identity=identity, also=journal.add(run)
        )
        if made:
            self.training.add(run)
            self.training.enqueue(op)
        return op

    async def _activation_room(self) -> int:
        """The same for the life of a data directory, so that a replay cuts its batches as the first run did."""
        room = await asyncio.shield(self._room)
        return int(await self.database.write(journal.setting("activation_bytes", str(room))))

    async def train(
        self,
        owner: str,
        run_id: str,
        seq_id: int,
        kind: OpKind,
        body: bytes,
        options: dict[str, Any] | None = None,
        identity: bytes | None = None,
    ) -> Op:
        run = self.training.find(run_id, owner)
        op, made = await self.futures.accept(
            run.id, seq_id, owner, kind, body, lambda: options or {}, identity=identity
        )
        if made:
            run.used = time.time()
            self.training.enqueue(op)
        return op

    async def load_weights(
        self, owner: str, run_id: str, seq_id: int, path: str, *, optimizer: bool, identity: bytes
    ) -> Op:
        run = self.training.find(run_id, owner)

        def options() -> dict[str, Any]:
            checkpoint = self.checkpoints.find(path, owner)
            if checkpoint.base_model != run.base_model:
                raise InputError(
                    "path", f"holds weights for {checkpoint.base_model}; this model is {run.base_model}"
                )
            return {"path": path, "optimizer": optimizer}

        op, made = await self.futures.accept(
            run.id, seq_id, owner, "load_weights", b"", options, identity=identity
        )
        if made:
            self.training.enqueue(op)
        return op

    async def save(
        self,
        owner: str,
        run_id: str,
        seq_id: int,
        kind: OpKind,
        checkpoint_kind: str,
        name: str | None,
        *,
        ttl_seconds: int | None = None,
        overwrite: bool = False,
        sampler: int | None = None,
        user_metadata: dict[str, Any] | None = None,
        identity: bytes,
    ) -> Op:
        """Save under `name`; without one, as the unnamed snapshot of sampling session number `sampler`."""
        run = self.training.find(run_id, owner)

        def options() -> dict[str, Any]:
            fixed: dict[str, Any] = {"checkpoint": new_checkpoint_id(), "kind": checkpoint_kind}
            if name is None:
                sampler_id = f"{run.session_id}:sample:{sampler}"
                if sampler_id in self.sampling.samplers:
                    raise InputError("sampling_session_seq_id", f"{sampler} is taken; use the next number")
                return fixed | {"kind": EPHEMERAL, "name": sampler_id, "sampler": sampler_id}
            if not overwrite:
                self.checkpoints.check_free(run.id, checkpoint_kind, check_name(name))
            return fixed | {
                "name": check_name(name),
                "overwrite": overwrite,
                "expires": expiry(ttl_seconds),
                "user_metadata": user_metadata,
            }

        op, made = await self.futures.accept(run.id, seq_id, owner, kind, b"", options, identity=identity)
        if made:
            run.used = time.time()
            self.training.enqueue(op)
        return op

    async def unload(self, owner: str, run_id: str, seq_id: int | None) -> Op:
        """Without a sequence id the request has no identity: each is a new one, below all that clients count."""
        return await self.train(
            owner, run_id, -secrets.randbits(31) if seq_id is None else seq_id, "unload", b""
        )

    # --- sampling ------------------------------------------------------------------------------------

    async def create_sampler(
        self, owner: str, session_id: str, seq_id: int, base_model: str | None, model_path: str | None
    ) -> Sampler:
        session = self.session(session_id, owner)
        sampler = self._new_sampler(owner, session, seq_id, base_model, model_path)
        known = self.sampling.samplers.get(sampler.id)
        if known is not None:
            if (known.base_model, known.model_path) != (sampler.base_model, sampler.model_path):
                raise InputError("sampling_session_seq_id", f"{seq_id} is taken; use the next number")
            return known
        self.sampling.add(sampler)
        try:
            await self.database.write(journal.add(sampler))
        except StorageError:
            self.sampling.drop([sampler])
            raise
        return sampler

    def _new_sampler(
        self, owner: str, session: Session, seq_id: int, base_model: str | None, model_path: str | None
    ) -> Sampler:
        sampler_id, now = f"{session.id}:sample:{seq_id}", time.time()
        if model_path is not None:
            checkpoint = self.checkpoints.find(model_path, owner, "model_path")
            if base_model is not None and base_model != checkpoint.base_model:
                raise InputError(
                    "base_model", f"is {base_model!r}, but the weights are for {checkpoint.base_model}"
                )
            return Sampler(
                sampler_id, session.id, owner, checkpoint.base_model, model_path, checkpoint.id, 0, now
            )
        if base_model is None:
            raise InputError("base_model", "is missing; name a base_model or a model_path")
        self.model_folder(base_model)
        return Sampler(sampler_id, session.id, owner, base_model, None, None, 0, now)

    async def join_sampler(self, owner: str, sampler_id: str) -> int:
        sampler = self.sampling.find(sampler_id, owner)
        sampler.clones += 1
        await self.database.write(journal.store(replace(sampler)))
        return sampler.clones

    async def sample(self, owner: str, sampler_id: str, seq_id: int, body: bytes) -> Op:
        sampler = self.sampling.find(sampler_id, owner)

        def options() -> dict[str, Any]:
            if sampler.snapshot is not None:
                self.checkpoints.get(sampler.snapshot)
            return {"seed": secrets.randbits(63)}

        op, made = await self.futures.accept(sampler.id, seq_id, owner, "sample", body, options)
        if made:
            self.sampling.enqueue(op)
        return op

    def stream(
        self, owner: str, base_model: str, snapshot: str | None, body: dict[str, Any], *, progress: bool
    ) -> AsyncGenerator[StreamEvent, None]:
        name = f"stream:{secrets.token_hex(8)}"
        full = body | {"sampling_session_id": name, "seq_id": 0}
        seed = secrets.randbits(63)
        return self.sampling.stream(
            name, owner, base_model, snapshot, json.dumps(full).encode(), seed, progress=progress
        )

    # --- checkpoints ---------------------------------------------------------------------------------

    async def copy_weights(self, owner: str, path: str, ttl_seconds: int | None) -> Checkpoint:
        """The copy belongs to a run of its own, so that its name is free and its life does not hang on the source."""
        source, now = self.checkpoints.find(path, owner, "source_path"), time.time()
        run = Run(
            f"{uuid.uuid4()}:train:0",
            "copies",
            owner,
            source.base_model,
            source.lora,
            await self._activation_room(),
            None,
            now,
            now,
        )
        copied = replace(
            source,
            id=new_checkpoint_id(),
            run_id=run.id,
            owner=owner,
            created=now,
            used=now,
            expires=expiry(ttl_seconds),
            public=False,
        )
        copied.ref = f"checkpoints/{copied.id}"
        await self.checkpoints.copy(source, copied, journal.add(run))
        self.training.add(run)
        return copied

    # --- housekeeping --------------------------------------------------------------------------------

    async def _keep_house(self) -> None:
        while True:
            await self._remove_expired()
            wait = HOUSEKEEPING_SECONDS
            if (expires := self.checkpoints.next_expiry()) is not None:
                wait = min(wait, max(0.0, expires - time.time()))
            self.checkpoints.changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.checkpoints.changed.wait(), wait)

    async def _remove_expired(self) -> None:
        limits, now = self.settings.limits, time.time()
        await self.checkpoints.remove(self.checkpoints.expired())
        surplus = self.checkpoints.surplus_ephemerals(limits.ephemeral_bytes, now - limits.ephemeral_seconds)
        await self.checkpoints.remove(surplus)
        gone = {checkpoint.id for checkpoint in surplus}
        samplers = [s for s in self.sampling.samplers.values() if s.snapshot in gone]
        if samplers:
            await self.database.write(journal.together(*map(journal.remove, samplers)))
            self.sampling.drop(samplers)
        for sampler in samplers:
            self.futures.forget_lane(sampler.id)
        drop = journal.drop_old_ops(now - limits.answer_seconds, now - limits.sample_seconds)
        for ref in await self.database.write(drop):
            (self.settings.data / "bodies" / ref).unlink(missing_ok=True)
