"""Runs and the order of their work.

Each run is a line: requests stand in it in order of arrival and a few at a time are with the worker. When the
worker dies, every line goes back to what the journal says: the last save, then all that was answered since
(silently), then what was not. Weights are a function of that order, so nothing is applied twice or lost.
"""

import asyncio
import json
import logging
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinker_engine.backends.messages import Closed, CloseRun, Done, Failed, OpenRun, Saved, ToWorker, Train
from tinker_engine.core import journal
from tinker_engine.core.checkpoints import EPHEMERAL, Checkpoints
from tinker_engine.core.futures import Futures
from tinker_engine.core.records import Checkpoint, Op, Run, Sampler
from tinker_engine.errors import DamagedError, InputError, NotFoundError, StorageError
from tinker_engine.store.database import Database
from tinker_engine.store.folders import remove_folder

log = logging.getLogger(__name__)

AHEAD = 4  # operations of a run that are with the worker, so that it never waits for the next
MOST_ATTEMPTS = 3
MOST_OPENINGS = (
    5  # that the worker may die of, one after the other, before those who wait for the run are told
)
SAVES = ("save_weights", "save_sampler", "save_external")
JSON = "application/json"


@dataclass
class _Line:
    run: Run
    queue: deque[Op] = field(default_factory=deque)
    sent: OrderedDict[str, Op] = field(default_factory=OrderedDict)
    opened: bool = False  # by this worker
    opening: asyncio.Task[None] | None = None
    deaths: int = 0  # of workers while they brought it back, since one got through


class Training:
    def __init__(
        self,
        database: Database,
        data: Path,
        futures: Futures,
        checkpoints: Checkpoints,
        *,
        send: Callable[[ToWorker], None],
        worker_alive: Callable[[], bool],
        model_folder: Callable[[str], Path],
        add_sampler: Callable[[Sampler], None],
    ):
        self._database = database
        self._data = data
        self._futures = futures
        self._checkpoints = checkpoints
        self._send = send
        self._worker_alive = worker_alive
        self._model_folder = model_folder
        self._add_sampler = add_sampler
        self.runs = {run.id: run for run in database.read_now(journal.load(Run))}
        self._lines = {run.id: _Line(run) for run in self.runs.values()}

    @property
    def depth(self) -> int:
        return sum(len(line.queue) + len(line.sent) for line in self._lines.values())

    def queued(self, run_id: str) -> int:
        line = self._lines[run_id]
        return len(line.queue) + len(line.sent)

    def refs(self) -> set[str]:
        return {Path(run.saved_ref).name for run in self.runs.values() if run.saved_ref}

    def find(self, run_id: str, owner: str) -> Run:
        run = self.runs.get(run_id)
        if run is None or run.owner != owner:
            raise NotFoundError(f"you have no training run {run_id[:200]!r}")
        return run

    def add(self, run: Run) -> None:
        self.runs[run.id] = run
        self._lines[run.id] = _Line(run)

    def enqueue(self, op: Op) -> None:
        line = self._lines[op.lane]
        if line.run.corrupted is not None:
            self._futures.fail(op, _corrupted(line.run), "server")
            return
        line.queue.append(op)
        self._pump(line)

    def pump_all(self) -> None:
        for line in self._lines.values():
            self._pump(line)

    def fail_all(self, reason: str) -> None:
        for line in self._lines.values():
            self._fail_line(line, reason)

    # --- from the worker -----------------------------------------------------------------------------

    def on_done(self, message: Done) -> bool:
        """Whether this was one of ours; likewise below."""
        line, op = self._sent(message.op)
        if line is None or op is None:
            return False
        line.deaths = 0
        if op.kind in SAVES:
            self._saved_checkpoint(line, op, message)
        else:
            self._out(line, op)
            self._futures.succeed(op, _answer(op, message.result), message.media_type)
            self._pump(line)
        return True

    def on_failed(self, message: Failed) -> bool:
        if message.replay:
            self._corrupt(self._lines[message.op.rsplit(":", 1)[0]], message.message)
            return True
        line, op = self._sent(message.op)
        if line is None or op is None:
            return False
        self._out(line, op)
        self._futures.fail(op, message.message, message.category)
        self._pump(line)
        return True

    def on_closed(self, message: Closed) -> None:
        """The worker could not open it. What was sent is answered with the reason; the next request tries again."""
        self._lines[message.run].opened = False

    def on_saved(self, message: Saved) -> None:
        run = self.runs.get(message.run)
        if run is None or message.position <= run.saved_position:
            return
        old = run.saved_ref
        run.saved_position, run.saved_ref = message.position, f"autosaves/{message.folder.name}"
        self._database.submit(journal.move_save(run)).add_done_callback(
            lambda done: self._drop_saved(old, done.exception(), () if done.exception() else done.result())
        )

    def on_lost(self, running: str | None) -> list[Op]:
        """Back to the journal. Returns the op that the worker died of, if it was one of ours."""
        suspects: list[Op] = []
        brought_back = self._brought_back(running)
        for line in self._lines.values():
            line.opened = False
            if line.opening is not None:
                line.opening.cancel()
                line.opening = None
            for op in reversed(line.sent.values()):
                if op.finished is None:  # else its answer is on its way into the journal
                    line.queue.appendleft(op)
                if op.request_id == running:
                    suspects.append(op)
            line.sent.clear()
            self._give_up(line, suspects)
        if brought_back is not None:
            self._give_up_opening(brought_back)
        return suspects

    def _brought_back(self, running: str | None) -> _Line | None:
        """The line that the worker was opening, or whose past it was replaying."""
        if running is None:
            return None
        line = self._lines.get(running) or self._lines.get(running.rsplit(":", 1)[0])
        return line if line is not None and running not in line.sent else None

    def _give_up_opening(self, line: _Line) -> None:
        """Its state may be more than there is memory for. Later there may be more: the run is not corrupted."""
        line.deaths += 1
        if line.deaths >= MOST_OPENINGS:
            reason = f"the compute process died {line.deaths} times while it brought back {line.run.id}"
            line.deaths = 0
            self._fail_line(line, f"{reason}; see the engine's log, and try again when there is more memory")

    def _give_up(self, line: _Line, suspects: list[Op]) -> None:
        """A request that kills whoever executes it must not do so for ever."""
        for op in suspects:
            if op in line.queue:
                op.attempts += 1
                if op.attempts >= MOST_ATTEMPTS:
                    line.queue.remove(op)
                    self._futures.fail(
                        op, f"the compute process died {op.attempts} times of this request", "server"
                    )

    # --- to the worker -------------------------------------------------------------------------------

    def _pump(self, line: _Line) -> None:
        while line.queue and len(line.sent) < AHEAD and self._worker_alive():
            op = line.queue[0]
            if op.kind == "unload":
                if line.sent:
                    return
                self._unload(line)
                continue
            # A load reads what a save before it wrote; and two saves may have one name.
            if line.sent and (op.kind == "load_weights" or (op.kind in SAVES and self._saving(line))):
                return
            if not line.opened:
                if line.opening is None:
                    line.opening = asyncio.create_task(self._open(line))
                return
            line.queue.popleft()
            try:
                message = self._message(line.run, op, op.body or b"")
            except (NotFoundError, DamagedError, InputError) as error:
                self._futures.fail(op, str(error), "user")
                continue
            line.sent[op.request_id] = op
            self._send(message)

    async def _open(self, line: _Line) -> None:
        run = line.run
        try:
            # In the line of writes, behind every answer that was given: a replay must not miss one.
            past = await self._database.write(journal.replayable_ops(run))
            replays = [self._replay(run, op) for op in past]
        except (StorageError, OSError, NotFoundError) as error:
            self._corrupt(line, str(error))
            return
        finally:
            line.opening = None
        state = self._data / run.saved_ref if run.saved_ref is not None else None
        folder = self._model_folder(run.base_model)
        self._send(OpenRun(run.id, run.owner, run.base_model, folder, run.lora, run.room, state))
        for replay in replays:
            if replay is not None:
                self._send(replay)
        line.opened = True
        self._pump(line)

    def _replay(self, run: Run, op: Op) -> Train | None:
        """What this op did to the run: nothing, if it failed; but a step that was begun has dropped the gradient."""
        if op.status == "failed":
            if op.kind != "optim_step" or op.category == "user":
                return None
            return Train(op.request_id, run.id, "drop_gradient", op.position, replay=True)
        return self._message(run, op, self._futures.body_of(op), replay=True)

    def _message(self, run: Run, op: Op, body: bytes, *, replay: bool = False) -> Train:
        options = op.options
        source = None
        if op.kind in SAVES and not options.get("overwrite", False):
            self._checkpoints.check_free(run.id, options["kind"], options["name"])
        if op.kind == "load_weights":
            source = self._checkpoints.folder(self._checkpoints.find(options["path"], op.owner).id)
        assert op.kind not in ("sample", "unload"), "these never reach a run's worker"
        return Train(
            op.request_id,
            run.id,
            op.kind,
            op.position,
            body=body,
            source=source,
            with_optimizer=options.get("optimizer", False),
            target=self._checkpoints.folder(options["checkpoint"]) if "checkpoint" in options else None,
            replay=replay,
        )

    def _unload(self, line: _Line) -> None:
        """Its memory is free; the journal brings it back if it is asked for again."""
        op = line.queue.popleft()
        if line.opened:
            self._send(CloseRun(line.run.id))
            line.opened = False
        self._futures.succeed(op, json.dumps({"model_id": line.run.id}).encode(), JSON)

    # --- results -------------------------------------------------------------------------------------

    def _saved_checkpoint(self, line: _Line, op: Op, message: Done) -> None:
        options = op.options
        checkpoint = checkpoint_record(line.run, op, message.size)
        parts = [self._checkpoints.adding(checkpoint)]
        sampler = None
        if checkpoint.kind == EPHEMERAL:
            sampler = Sampler(
                options["sampler"],
                line.run.session_id,
                line.run.owner,
                line.run.base_model,
                None,
                checkpoint.id,
                0,
                op.accepted,
            )
            parts.append(journal.add(sampler))
            answer = {"sampling_session_id": sampler.id, "path": None}
        else:
            answer = {"path": checkpoint.tinker_path}

        def then(stored: bool) -> None:
            self._out(line, op)
            if stored:
                self._checkpoints.added(checkpoint)
                if sampler is not None:
                    self._add_sampler(sampler)
            else:
                remove_folder(self._checkpoints.folder(checkpoint.id))
            self._pump(line)

        self._futures.succeed(op, json.dumps(answer).encode(), JSON, journal.together(*parts), then)

    def _drop_saved(self, ref: str | None, error: BaseException | None, bodies: Any) -> None:
        """Called by the database's thread, which may wait for the disk."""
        if error is not None:
            log.error("a save could not be recorded; the journal goes on growing: %s", error)
            return
        if ref is not None:
            remove_folder(self._data / ref)
        for body in bodies:
            (self._data / "bodies" / body).unlink(missing_ok=True)

    def _corrupt(self, line: _Line, reason: str) -> None:
        run = line.run
        log.error("%s cannot be brought back: %s", run.id, reason)
        run.corrupted = reason
        self._database.submit(journal.store(run))
        self._send(CloseRun(run.id))
        self._fail_line(line, _corrupted(run, self._last_checkpoint(run)))

    def _fail_line(self, line: _Line, reason: str) -> None:
        for op in [*line.sent.values(), *line.queue]:
            self._futures.fail(op, reason, "server")
        line.sent.clear()
        line.queue.clear()

    def _last_checkpoint(self, run: Run) -> str | None:
        saved = [c for c in self._checkpoints.named(run.owner, run.id) if c.kind == "weights"]
        return saved[0].tinker_path if saved else None

    def _sent(self, request_id: str) -> tuple[_Line | None, Op | None]:
        line = self._lines.get(request_id.rsplit(":", 1)[0])
        return line, line.sent.get(request_id) if line is not None else None

    def _out(self, line: _Line, op: Op) -> None:
        line.sent.pop(op.request_id, None)

    def _saving(self, line: _Line) -> bool:
        return any(op.kind in SAVES for op in line.sent.values())


def checkpoint_record(run: Run, op: Op, size: int) -> Checkpoint:
    options = op.options
    return Checkpoint(
        id=options["checkpoint"],
        run_id=run.id,
        kind=options["kind"],
        name=options["name"],
        owner=run.owner,
        base_model=run.base_model,
        lora=run.lora,
        ref=f"checkpoints/{options['checkpoint']}",
        size=size,
        created=op.accepted,
        used=op.accepted,
        expires=options.get("expires"),
        public=False,
        user_metadata=options.get("user_metadata"),
    )


def new_checkpoint_id() -> str:
    return secrets.token_hex(16)


def _answer(op: Op, result: bytes) -> bytes:
    if op.kind == "create":
        return json.dumps({"model_id": op.lane, "type": "create_model"}).encode()
    if op.kind == "load_weights":
        return json.dumps({"path": op.options["path"], "model_id": op.lane}).encode()
    return result


def _corrupted(run: Run, last: str | None = None) -> str:
    go_on = f"go on from {last}" if last else "create it anew"
    return f"the state of {run.id} cannot be brought back ({run.corrupted}); {go_on}"
