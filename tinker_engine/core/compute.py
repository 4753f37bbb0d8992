"""The compute process as the api process sees it: started, spoken to, and replaced when it dies."""

import asyncio
import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import psutil

from tinker_engine.backends.messages import HEADER, FromWorker, ToWorker, frame


class Compute:
    def __init__(
        self,
        data: Path,
        *,
        durable: bool,
        run_bytes: int | None,
        on_message: Callable[[FromWorker], None],
        on_end: Callable[[str], None],
    ):
        self._command = [sys.executable, "-m", "tinker_engine.backends.worker", "--data", str(data)]
        self._command += ["--durable"] if durable else []
        self._command += ["--run-bytes", str(run_bytes)] if run_bytes is not None else []
        self._on_message = on_message
        self._on_end = on_end
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._listening: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def alive(self) -> bool:
        return self._writer is not None

    @property
    def memory_bytes(self) -> int | None:
        """What it holds; None while there is none."""
        if self.pid is None or not self.alive:
            return None
        try:
            return psutil.Process(self.pid).memory_info().rss
        except psutil.NoSuchProcess:
            return None  # it is being replaced

    async def start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.set_inheritable(True)
            fileno = str(theirs.fileno())
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                "--socket",
                fileno,
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                env=_environment(),
            )
        ours.setblocking(False)
        reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        self._listening = asyncio.create_task(self._listen(reader, self._process))

    def send(self, message: ToWorker) -> None:
        """To a process that has died: into the void. `on_end` says so, and everything unanswered is sent again."""
        if self._writer is not None:
            self._writer.write(frame(message))

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def stop(self, seconds: float) -> None:
        """Wait for it to end by itself, for so long."""
        if self._process is None:
            return
        try:
            await asyncio.wait_for(self._process.wait(), seconds)
        except TimeoutError:
            self.kill()
        if self._listening is not None:
            await self._listening

    async def _listen(self, reader: asyncio.StreamReader, process: asyncio.subprocess.Process) -> None:
        try:
            while True:
                (length,) = HEADER.unpack(await reader.readexactly(HEADER.size))
                self._on_message(pickle.loads(await reader.readexactly(length)))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # it ended; how, its exit code says
        finally:
            if self._writer is not None:
                self._writer.close()
            self._writer = None
        self._on_end(_describe(await process.wait()))


def _environment() -> dict[str, str]:
    """How glibc deals with memory there.

    By default every thread has a heap of its own, and each keeps what its largest task once needed. Freed activations
    go back to the system, which must then zero all of them again for the next step; the worker gives memory back when
    it has been idle for a while.
    """
    keep = {"MALLOC_TRIM_THRESHOLD_": str(1 << 36), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
    return {"MALLOC_ARENA_MAX": "2"} | keep | os.environ


def _describe(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return f"{name}, perhaps for want of memory" if name == "SIGKILL" else name
