"""The other end of `bounded_calls`: a process that runs one call after another and may be killed in any of them.

Requests come pickled, for they come from our own process; answers go back as JSON, for a call has seen text of others.
"""

import contextlib
import importlib
import json
import os
import pickle
import signal
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

GRACE_SECONDS = 2.0  # after which a call ends even if whoever should have killed it is gone
MEMORY_LIMIT = 4 << 30  # bytes of address space
LENGTH_BYTES = 4


def write_frame(file: BinaryIO, data: bytes) -> None:
    file.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)
    file.flush()


def read_frame(file: BinaryIO) -> bytes:
    """EOFError if the other side is gone."""
    length = int.from_bytes(_exactly(file, LENGTH_BYTES), "big")
    return _exactly(file, length)


def _exactly(file: BinaryIO, length: int) -> bytes:
    data = file.read(length)
    if len(data) < length:
        raise EOFError
    return data


def main() -> None:
    requests, answers = sys.stdin.buffer, _private_stdout()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for our parent, whose end is ours
    _limit_memory()
    _prepare(sys.argv[1])
    while True:
        try:
            target, args, timeout = pickle.loads(read_frame(requests))
        except EOFError:
            return
        try:
            function = _find(target)
        except Exception as error:  # reported to the caller, whatever an import may raise
            _answer(answers, "unusable", [type(error).__name__, str(error), getattr(error, "name", None)])
            continue
        _answer(answers, "started", None)
        _arm(timeout + GRACE_SECONDS)
        try:
            kind, value = "result", function(*args)
        except Exception as error:  # likewise
            kind, value = "raised", f"{type(error).__name__}: {error}"[:1000]
        _arm(0)
        _answer(answers, kind, value)


def _prepare(target: str) -> None:
    """Import what the first call is likely to need before it comes. What fails here fails there, and is told there."""
    with contextlib.suppress(Exception):
        _find(target)


def _find(target: str) -> Callable[..., Any]:
    """Importing is not part of a call's time, nor is what a module does to be quick from its first call on."""
    module_name, _, name = target.partition(":")
    known = sys.modules.get(module_name)
    module = known or importlib.import_module(module_name)
    if known is None and hasattr(module, "warm_up"):
        module.warm_up()
    return getattr(module, name)


def _answer(file: BinaryIO, kind: str, value: Any) -> None:
    write_frame(file, json.dumps([kind, value]).encode())


def _private_stdout() -> BinaryIO:
    """What a library prints must not get between the answers."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def _arm(seconds: float) -> None:
    """The system ends this process after so long; 0: it does not. Needs no Python to run, nor a parent to be alive."""
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = MEMORY_LIMIT if hard == resource.RLIM_INFINITY else min(MEMORY_LIMIT, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
