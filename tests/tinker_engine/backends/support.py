"""A worker in this process: the test is the api process at the other end of its socket."""

import json
import pickle
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tests.tinker_engine.api.raw import forward_backward_body
from tinker_engine.backends.channel import Channel
from tinker_engine.backends.messages import HEADER, FromWorker, OpenRun, Sample, ToWorker, Train, frame
from tinker_engine.backends.worker import Worker
from tinker_engine.model import tiny

LORA = {"rank": 2, "seed": 1, "train_attn": True, "train_mlp": True, "train_unembed": True}
ROOM = 20 << 20  # bytes for activations: a few hundred tokens, so that long calls have many pieces
TURNS = 20_000

MessageT = TypeVar("MessageT")


class Driven:
    """`step` lets the worker do one piece; what it says is in `heard`, in order."""

    def __init__(self, worker: Worker, ours: socket.socket):
        self.worker = worker
        self._socket = ours
        self._buffer = bytearray()
        self.heard: list[FromWorker] = []

    def send(self, *messages: ToWorker) -> None:
        for message in messages:
            self._socket.sendall(frame(message))

    def step(self) -> None:
        worker = self.worker
        busy = worker._inbox or worker._training or worker._samples.busy or worker._channel.ready
        assert busy, f"the worker would wait for ever; heard: {self.heard[-5:]}"
        worker.step()
        self.listen()

    def listen(self) -> None:
        self._socket.setblocking(False)
        try:
            while data := self._socket.recv(1 << 20):
                self._buffer += data
        except BlockingIOError:
            pass
        finally:
            self._socket.setblocking(True)
        while len(self._buffer) >= HEADER.size:
            (length,) = HEADER.unpack_from(self._buffer)
            end = HEADER.size + length
            if len(self._buffer) < end:
                return
            self.heard.append(pickle.loads(self._buffer[HEADER.size : end]))
            del self._buffer[:end]

    def of(self, kind: type[MessageT], op: str | None = None) -> list[MessageT]:
        return [m for m in self.heard if isinstance(m, kind) and op in (None, getattr(m, "op", None))]

    def order(self, kind: type) -> list[str]:
        return [m.op for m in self.of(kind)]

    def until(self, condition: Callable[[], object]) -> None:
        for _ in range(TURNS):
            if condition():
                return
            self.step()
        raise AssertionError(f"it never came about; heard: {self.heard[-5:]}")

    def until_heard(self, kind: type[MessageT], op: str) -> MessageT:
        self.until(lambda: self.of(kind, op))
        return self.of(kind, op)[0]


@contextmanager
def driven_worker(data: Path, run_bytes: int | None = None) -> Iterator[Driven]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
        driven = Driven(Worker(Channel(theirs), data, durable=False, run_bytes=run_bytes), ours)
        driven.listen()
        yield driven


def open_run(run: str, client: str = "c", state: Path | None = None) -> OpenRun:
    return OpenRun(run, client, tiny.NAME, tiny.FOLDER, dict(LORA), ROOM, state)


def forward_backward(op: str, run: str, data: Sequence[Sequence[int]], position: int = 1, **more) -> Train:
    return Train(op, run, "forward_backward", position, forward_backward_body(run, 1, data), **more)


def optim_step(op: str, run: str, position: int, rate: float = 1e-2, **more) -> Train:
    body = {"model_id": run, "seq_id": 1, "adam_params": {"learning_rate": rate}}
    return Train(op, run, "optim_step", position, json.dumps(body).encode(), **more)


def sample(
    op: str,
    client: str,
    max_tokens: int,
    *,
    snapshot: Path | None = None,
    stream: bool = False,
    seed: int = 1,
) -> Sample:
    body = {
        "sampling_session_id": "s",
        "seq_id": 0,
        "num_samples": 1,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [5, 6, 7]}]},
        "sampling_params": {"max_tokens": max_tokens, "stop": []},
    }
    name = snapshot.name if snapshot else None
    return Sample(op, client, tiny.NAME, tiny.FOLDER, name, snapshot, json.dumps(body).encode(), seed, stream)
