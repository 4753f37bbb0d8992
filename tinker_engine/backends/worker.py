"""The compute process: `step()` is take what has come → choose → run a piece → deliver.

One thread does all the arithmetic, because two that share the cores slow each other many times over. Training
advances a micro-batch at a time, sampling a token at a time, and while both have work each gets half of the time;
a long micro-batch is interrupted between layers (`_pause`). Among runs, and among the clients that sample,
whoever had least comes first.
"""

import argparse
import os
import signal
import socket
import time
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path

from tinker_engine.backends import messages
from tinker_engine.backends.base_models import BaseModels, Snapshots
from tinker_engine.backends.channel import Channel
from tinker_engine.backends.live_runs import LiveRun, LiveRuns
from tinker_engine.backends.messages import (
    SAMPLING,
    Cancel,
    Closed,
    CloseRun,
    Done,
    Failed,
    Forget,
    Hello,
    OpenRun,
    Running,
    Sample,
    SaveAll,
    Stats,
    Stopped,
    ToWorker,
    Train,
)
from tinker_engine.backends.operations import Operations
from tinker_engine.backends.sample_jobs import SampleJobs
from tinker_engine.errors import DamagedError, EngineError, InputError, ModelError
from tinker_engine.model.memory import free_bytes, give_back_memory
from tinker_engine.training.memory import SHARE_OF_FREE

PROTOBUF, JSON = "application/x-protobuf", "application/json"
RUN_SHARE, SNAPSHOT_SHARE = 0.2, 0.1  # of free memory
IDLE_SECONDS = 60.0  # after which memory is given back: to fault it in again costs a fifth of a training step
STATS_SECONDS, STATS_PAUSE = 1.0, 0.05  # while there is work, and after it: not between two requests


class Worker:
    def __init__(self, channel: Channel, data: Path, *, durable: bool, run_bytes: int | None = None):
        free = free_bytes(_device())
        self._channel = channel
        self._models = BaseModels()
        self._snapshots = Snapshots(int(free * SNAPSHOT_SHARE))
        most = int(free * RUN_SHARE) if run_bytes is None else run_bytes
        self._runs = LiveRuns(self._models.find, self._pause, data / "spill", most)
        self._operations = Operations(self._runs, self._snapshots, data, channel.send, durable=durable)
        self._samples = SampleJobs(self._models, self._snapshots, channel.send)
        self._inbox: deque[ToWorker] = deque()
        self._broken: dict[str, Exception] = {}  # runs that could not be opened
        self._announced = ""
        self._current: LiveRun | None = None  # being trained; its piece began at _began
        self._began = 0.0
        self._trained_seconds = self._sampled_seconds = 0.0  # as fairness counts them
        self._spent = {"training_seconds": 0.0, "sampling_seconds": 0.0}
        self._trained_tokens = self._train_ops = 0
        self._last_stats = 0.0
        self._stats_due = True  # something has happened since the last report
        self._trim_due = False  # and since memory was given back
        self.stopped = False
        channel.send(Hello(os.getpid(), int(free * SHARE_OF_FREE)))

    def step(self) -> None:
        idle = not (self._inbox or self._training or self._samples.busy)
        if idle and self._stats_due and not self._channel.ready_within(STATS_PAUSE):
            self._report_stats()
        if idle and self._trim_due and not self._channel.ready_within(IDLE_SECONDS):
            self._trim_due = False
            self._samples.release()
            give_back_memory()
        self._receive(wait=idle)
        self._stats_due = self._trim_due = True
        while self._inbox:
            self._handle(self._inbox.popleft())
        self._level()
        if self._training and (not self._samples.busy or self._trained_seconds <= self._sampled_seconds):
            self._train()
        elif self._samples.busy:
            self._sample()
        if time.monotonic() - self._last_stats > STATS_SECONDS:
            self._report_stats()

    # --- messages ------------------------------------------------------------------------------------

    def _receive(self, *, wait: bool) -> None:
        self._inbox.extend(self._channel.receive(wait=wait))

    def _handle(self, message: ToWorker) -> None:
        match message:
            case Train():
                self._queue(message)
            case Sample():
                self._announce(SAMPLING)  # it may load a model
                self._guarded(message.op, lambda: self._samples.accept(message))
            case Cancel():
                self._samples.cancel(message.op)
            case OpenRun():
                self._open(message)
            case CloseRun():
                self._runs.close(message.run)
            case Forget():
                self._snapshots.forget(message.snapshots)
            case SaveAll():
                self._save_all()

    def _open(self, message: OpenRun) -> None:
        """What keeps a run from being opened is the answer to all its operations."""
        self._broken.pop(message.run, None)
        self._announce(message.run)
        try:
            self._runs.open(message)
        except DamagedError as error:  # it will not get better
            self._broken[message.run] = error
            self._channel.send(Failed(f"{message.run}:0", str(error), "server", replay=True))
            return
        except Exception as error:  # the boundary, as in _guarded
            self._broken[message.run] = error
            self._channel.send(Closed(message.run))
            return
        self._runs.get(message.run).time = min((run.time for run in self._runs if run.busy), default=0.0)

    def _queue(self, op: Train) -> None:
        error = self._broken.get(op.run)
        if error is None:
            self._runs.get(op.run).queue.append(op)
        elif not op.replay:
            self._guarded(op.op, lambda: _raise(error))

    def _save_all(self) -> None:
        for run in self._runs:
            try:
                if run.work is None:
                    self._operations.save_now(run)
            except OSError as error:
                self._channel.send(messages.Trouble(f"{run.id} could not be saved at the end: {error}"))
        self._channel.send(Stopped())
        self.stopped = True

    # --- training ------------------------------------------------------------------------------------

    @property
    def _training(self) -> bool:
        return any(run.busy for run in self._runs)

    def _train(self) -> None:
        """One piece of the operation of the run that had least."""
        run = min((run for run in self._runs if run.busy), key=lambda run: run.time)
        op = run.queue[0]
        self._announce(op.op)
        self._current, self._began = run, time.perf_counter()
        finished = (
            not self._guarded(op.op, lambda: self._advance(run, op), replay=op.replay) or run.work is None
        )
        self._charge()
        self._current = None
        if finished:
            run.work = None
            run.queue.popleft()
            self._operations.save_if_due(run)

    def _advance(self, run: LiveRun, op: Train) -> None:
        if run.work is None:
            run.work = self._operations.begin(run, op)
        try:
            self._trained_tokens += next(run.work)
        except StopIteration as end:
            run.work = None
            self._train_ops += 1
            if not op.replay:
                size = sum(p.stat().st_size for p in op.target.iterdir()) if op.target else 0
                self._channel.send(
                    Done(op.op, end.value, PROTOBUF if op.kind == "forward_backward" else JSON, size)
                )

    def _charge(self) -> None:
        """Put the time since the piece began, or since it was last interrupted, on its account."""
        now = time.perf_counter()
        assert self._current is not None
        seconds = now - self._began
        self._current.time += seconds
        self._current.unsaved_seconds += seconds
        self._trained_seconds += seconds
        self._spent["training_seconds"] += seconds
        self._began = now

    def _pause(self) -> None:
        """Called by the trainer between layers: sampling gets its half of the time."""
        self._charge()
        if self._channel.ready or self._samples.busy:
            self._receive(wait=False)
            self._take_samples()
            while self._samples.busy and self._sampled_seconds < self._trained_seconds:
                self._sample()
                self._receive(wait=False)
                self._take_samples()
            assert self._current is not None
            self._announce(self._current.queue[0].op)
            self._began = time.perf_counter()

    def _take_samples(self) -> None:
        """Requests to sample need no turn of the loop; the rest waits for it, in order."""
        later: deque[ToWorker] = deque()
        while self._inbox:
            message = self._inbox.popleft()
            if isinstance(message, Sample | Cancel):
                self._handle(message)
            else:
                later.append(message)
        self._inbox = later

    # --- sampling ------------------------------------------------------------------------------------

    def _sample(self) -> None:
        self._announce(SAMPLING)
        began = time.perf_counter()
        self._samples.step()
        seconds = time.perf_counter() - began
        self._sampled_seconds += seconds
        self._spent["sampling_seconds"] += seconds

    def _announce(self, op: str) -> None:
        if op != self._announced:
            self._channel.send(Running(op))
            self._announced = op

    # --- bookkeeping ---------------------------------------------------------------------------------

    def _level(self) -> None:
        """Nobody saves up time by being idle."""
        if not self._training:
            self._trained_seconds = max(self._trained_seconds, self._sampled_seconds)
        if not self._samples.busy:
            self._sampled_seconds = max(self._sampled_seconds, self._trained_seconds)
        least = min((run.time for run in self._runs if run.busy), default=None)
        if least is not None:
            for run in self._runs:
                if not run.busy:
                    run.time = max(run.time, least)

    def _guarded(self, op: str, work: Callable[[], object], *, replay: bool = False) -> bool:
        """The boundary: whatever goes wrong in an operation is that operation's answer."""
        try:
            work()
        except EngineError as error:
            category = "user" if isinstance(error, InputError | ModelError) else "server"
            self._channel.send(Failed(op, str(error), category, replay=replay))
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            self._channel.send(Failed(op, message, "server", traceback.format_exc(), replay))
        else:
            return True
        return False

    def _report_stats(self) -> None:
        self._last_stats = time.monotonic()
        self._stats_due = False
        values = self._samples.stats() | {
            "trained_tokens": self._trained_tokens,
            "training_operations": self._train_ops,
            **self._spent,
            "runs": sum(1 for _ in self._runs),
            "runs_in_memory": self._runs.in_memory,
        }
        self._channel.send(Stats({name: float(value) for name, value in values.items()}))


def _raise(error: Exception) -> None:
    raise error


def _device():
    from tinker_engine.model.device import pick_device

    return pick_device(None)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--durable", action="store_true")
    parser.add_argument("--run-bytes", type=int)
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the api process says when to end
    channel = Channel(socket.socket(fileno=arguments.socket))
    worker = Worker(channel, arguments.data, durable=arguments.durable, run_bytes=arguments.run_bytes)
    try:
        while not worker.stopped:
            worker.step()
    except (EOFError, ConnectionError):
        return  # the api process is gone; it or its successor has the journal


if __name__ == "__main__":
    main()
