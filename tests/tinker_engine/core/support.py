"""An engine without arithmetic: a stand-in for the compute process that does what the test says."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from unittest import mock

from tinker_engine.backends.messages import (
    CloseRun,
    Done,
    FromWorker,
    Hello,
    OpenRun,
    Running,
    Sample,
    ToWorker,
    Train,
)
from tinker_engine.core.engine import Engine
from tinker_engine.core.records import Op
from tinker_engine.core.settings import Limits, Settings
from tinker_engine.model import tiny
from tinker_engine.store.folders import whole_folder
from tinker_engine.wire.create_model import CreateModelCall

ME = "me"
LORA = {"rank": 4, "seed": 1, "train_attn": True, "train_mlp": True, "train_unembed": True}
TURNS = 2000


class FakeCompute:
    def __init__(
        self,
        data: Path,
        *,
        durable: bool,
        run_bytes: int | None,
        on_message: Callable[[FromWorker], None],
        on_end: Callable[[str], None],
    ):
        self.say = on_message
        self._on_end = on_end
        self.alive, self.pid, self.starts = False, 1, 0
        self.sent: list[ToWorker] = []  # to this incarnation

    async def start(self) -> None:
        self.alive, self.sent = True, []
        self.starts += 1
        self.say(Hello(1, 1 << 30))

    def send(self, message: ToWorker) -> None:
        if self.alive:
            self.sent.append(message)

    async def stop(self, seconds: float) -> None:
        self.alive = False

    def die(self, running: str | None = None) -> None:
        if running is not None:
            self.say(Running(running))
        self.alive = False
        self._on_end("SIGKILL")

    def done(self, op: str, result: bytes = b"{}") -> None:
        message = next(m for m in self.sent if isinstance(m, Train | Sample) and m.op == op)
        if isinstance(message, Train) and message.target is not None:
            with whole_folder(message.target, sync=False) as folder:
                (folder / "weights").write_bytes(result)
        self.say(Done(op, result, "application/json", len(result)))

    @property
    def training(self) -> list[tuple[str, str, bool]]:
        """(operation, kind, whether it is a replay) of what was sent, in order; runs that are opened as such."""
        rows: list[tuple[str, str, bool]] = []
        for message in self.sent:
            if isinstance(message, Train):
                rows.append((message.op.rsplit(":", 1)[1], message.kind, message.replay))
            elif isinstance(message, OpenRun | CloseRun):
                rows.append((message.run, "open" if isinstance(message, OpenRun) else "close", False))
        return rows


@asynccontextmanager
async def engine_with_fake_compute(data: Path, **limits: float) -> AsyncIterator[tuple[Engine, FakeCompute]]:
    settings = Settings(data, {tiny.NAME: tiny.FOLDER}, {}, limits=Limits(**limits))  # pyright: ignore[reportArgumentType]
    with mock.patch("tinker_engine.core.engine.Compute", FakeCompute):
        engine = Engine(settings)
    await engine.start()
    compute = engine.compute
    assert isinstance(compute, FakeCompute)
    try:
        yield engine, compute
    finally:
        await engine.stop()


async def until(engine: Engine, condition: Callable[[], object]) -> None:
    """Let the engine work until something has come about."""
    for _ in range(TURNS):
        if condition():
            return
        await engine.database.write(lambda _: None)
        await asyncio.sleep(0)
    raise AssertionError("it never came about")


async def new_run(engine: Engine, compute: FakeCompute, number: int = 0) -> str:
    session = await engine.create_session(ME, {})
    op = await engine.create_model(ME, CreateModelCall(session.id, number, tiny.NAME, dict(LORA), None), b"")
    await until(engine, lambda: f"{op.lane}:0" in [m.op for m in compute.sent if isinstance(m, Train)])
    compute.done(op.request_id)
    await answered(engine, op)
    return op.lane


async def answered(engine: Engine, op: Op) -> Op:
    await until(engine, lambda: op.done)
    return op
