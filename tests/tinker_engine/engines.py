"""Programs, in processes of their own, that start or join a stand-in engine."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tinker_engine.process import Process

STANDIN = (sys.executable, str(Path(__file__).with_name("standin.py")))
# Where tests run in the background of a shell, SIGINT is ignored from the start, by all that they start too.
_PRELUDE = (
    "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    f"from tinker_engine import embedded\nembedded.PROGRAM = {STANDIN!r}\n"
)
WAIT = 60  # seconds after which a test that waits for an event has failed


def python(script: str, **environment: str) -> subprocess.Popen[str]:
    """Runs the script with the stand-in for the engine; its lines can be read and written."""
    return subprocess.Popen(
        [sys.executable, "-c", _PRELUDE + script],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def user(data: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that uses the engine on `data` until its input ends. It has printed `{pid, started}`."""
    script = (
        "import json, sys, pathlib\n"
        "engine = embedded.start_or_join(pathlib.Path(sys.stdin.readline().strip()))\n"
        "print(json.dumps({'pid': engine.pid, 'started': engine.started_here}), flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = python(script)
    assert process.stdin is not None
    process.stdin.write(f"{data}\n")
    process.stdin.flush()
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> dict:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def ends(pid: int) -> bool:
    try:
        return Process(pid).gone(within=WAIT)
    except ProcessLookupError:
        return True


def kill(pid: int) -> None:
    process = Process(pid)
    os.kill(pid, signal.SIGKILL)
    assert process.gone(within=WAIT)
