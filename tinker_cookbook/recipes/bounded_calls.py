"""Calls that take no longer than they may: in processes of their own, killed and replaced when time is up.

A thread cannot be stopped, so what a model wrote is never handed to a parser or a solver in this process. Processes
start at the first call that needs one (a second or so), serve many, and end with this process.
"""

import asyncio
import atexit
import contextlib
import json
import logging
import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from tinker_cookbook.exceptions import TinkerCookbookError
from tinker_cookbook.recipes.bounded_worker import read_frame, write_frame

logger = logging.getLogger(__name__)

START_SECONDS = 120.0  # to start Python and import what a call needs, on a busy machine
MOST_WORKERS = 4
_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    "from tinker_cookbook.recipes.bounded_worker import main; main()"
)


class CallTimeoutError(TinkerCookbookError, TimeoutError):
    """The call was not done in time, and is no longer running."""


class CallFailedError(TinkerCookbookError, RuntimeError):
    """The call raised, or its process died."""


class CallUnavailableError(TinkerCookbookError, RuntimeError):
    """The function could not be imported. `missing` names the package, if that is why."""

    def __init__(self, message: str, missing: str | None = None):
        super().__init__(message, missing)
        self.missing = missing

    def __str__(self) -> str:
        return str(self.args[0])


class BoundedCalls:
    """At most `size` calls at a time; others wait their turn, and their time begins when it comes."""

    def __init__(self, size: int | None = None):
        self.size = size or min(MOST_WORKERS, os.cpu_count() or 1)
        # None stands for a worker that is not started yet; used last, so that no more are started than are needed.
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(self.size):
            self._idle.put(None)
        self._threads = ThreadPoolExecutor(self.size, thread_name_prefix="bounded-call")
        self._closed = False

    def call(self, target: str, *args: Any, timeout: float) -> Any:
        """`target` is `module:function`; its result must be JSON. Raises one of the errors above."""
        with self._worker(target) as worker:
            return worker.call(target, args, timeout)

    async def call_async(self, target: str, *args: Any, timeout: float) -> Any:
        """The same without blocking the event loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: self.call(target, *args, timeout=timeout))

    @contextlib.contextmanager
    def _worker(self, target: str) -> Iterator["_Worker"]:
        worker = self._idle.get()
        try:
            if worker is None:
                worker = _Worker(target)
            yield worker
        finally:
            if worker is not None and not worker.alive:  # its successor starts while nobody waits for it
                worker = _Worker(target)
            if worker is not None and self._closed:
                worker.end()
                worker = None
            self._idle.put(worker)

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(queue.Empty):
            while True:
                worker = self._idle.get_nowait()
                if worker is not None:
                    worker.end()
        for _ in range(self.size):
            self._idle.put(None)
        self._threads.shutdown(wait=False)


class _Worker:
    def __init__(self, target: str):
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOTSTRAP, target, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # whatever goes wrong there is said in an answer
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        self.alive = True

    def call(self, target: str, args: tuple[Any, ...], timeout: float) -> Any:
        with self._killed_after(START_SECONDS):
            kind, value = self._exchange(pickle.dumps((target, args, timeout)))
        if kind == "unusable":
            error_type, message, missing = value
            raise CallUnavailableError(
                f"{target}: {error_type}: {message}",
                missing if error_type == "ModuleNotFoundError" else None,
            )
        if kind == "started":
            with self._killed_after(timeout) as killed:
                kind, value = self._exchange(None)
            if killed.is_set():
                raise CallTimeoutError(f"{target} took longer than {timeout:g} s")
        if kind == "died":
            raise CallFailedError(f"the process died in {target}: {value}")
        if kind == "raised":
            raise CallFailedError(f"{target}: {value}")
        return value

    def _exchange(self, request: bytes | None) -> tuple[str, Any]:
        """Sends if there is something to send, and waits for the next answer."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            if request is not None:
                write_frame(cast(Any, stdin), request)
            return tuple(json.loads(read_frame(cast(Any, stdout))))
        except (EOFError, OSError, ValueError) as error:  # ValueError: cut off in the middle
            self.end()
            return "died", f"{type(error).__name__}, exit code {self._process.returncode}"

    @contextlib.contextmanager
    def _killed_after(self, seconds: float) -> Iterator[threading.Event]:
        """A kill makes whoever reads from the process see its end."""
        killed = threading.Event()

        def kill() -> None:
            killed.set()
            self._process.kill()

        timer = threading.Timer(seconds, kill)
        timer.daemon = True
        timer.start()
        try:
            yield killed
        finally:
            timer.cancel()
            timer.join()
            if killed.is_set():
                self.end()

    def end(self) -> None:
        self.alive = False
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


_shared: BoundedCalls | None = None
_lock = threading.Lock()


def shared_calls() -> BoundedCalls:
    """Those of this process."""
    global _shared
    with _lock:
        if _shared is None:
            _shared = BoundedCalls()
        return _shared


def close_shared_calls() -> None:
    global _shared
    with _lock:
        calls, _shared = _shared, None
    if calls is not None:
        calls.close()


def _forget_after_fork() -> None:
    """A forked child must not talk to the workers of its parent."""
    global _shared, _lock
    _shared, _lock = None, threading.Lock()


atexit.register(close_shared_calls)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
