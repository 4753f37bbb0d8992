"""`tinker-engine run -- COMMAND`: an engine for as long as a program runs that knows nothing of it."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tinker_engine.embedded import client_environment, start_or_join

_NOT_FOUND, _NOT_EXECUTABLE, _SIGNALLED = 127, 126, 128  # exit codes as shells give them


def run(command: Sequence[str], *, data: Path | None = None, models: Sequence[str] = ()) -> int:
    """The exit code of the command; 128 + n if signal n ended it."""
    if shutil.which(command[0]) is None:
        _say(
            f"error: {command[0]}: no such program; give its path, or type: tinker-engine run -- python script.py"
        )
        return _NOT_FOUND
    engine = start_or_join(data, models=models, on_progress=_say, on_death=_say)
    try:
        return _supervise(command, os.environ | client_environment(engine, os.environ))
    finally:
        if engine.started_here:
            engine.stop()


def _supervise(command: Sequence[str], environment: dict[str, str]) -> int:
    child: subprocess.Popen[bytes] | None = None

    def forward(number: int, _: FrameType | None) -> None:
        if child is None:
            raise SystemExit(_SIGNALLED + number)
        if not (number == signal.SIGINT and _in_foreground()):
            child.send_signal(number)

    with _handled_by(forward):
        try:
            child = subprocess.Popen(command, env=environment)
        except OSError as error:
            _say(f"error: {command[0]}: {error.strerror}")
            return _NOT_EXECUTABLE
        code = child.wait()
    return code if code >= 0 else _SIGNALLED - code


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _in_foreground() -> bool:
    """Whether Ctrl-C reaches the command without us: a second one would interrupt its cleaning up."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    finally:
        os.close(terminal)


def _say(message: str) -> None:
    print(f"tinker-engine: {message}", file=sys.stderr, flush=True)
