"""The engine of this machine, for programs that were given no server: start it, or join the one that runs.

    engine = start_or_join()
    os.environ |= client_environment(engine, os.environ)

One engine serves one data directory. It ends when the last process that started or joined it is gone, however
that process ended. If the engine dies first, its port answers with the reason (`tombstone`).
"""

import fcntl
import http.client
import json
import os
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import tinker_engine
from tinker_engine import config, tombstone
from tinker_engine.errors import EngineError
from tinker_engine.process import Process

# -P: a file of the user's that happens to be called like a module must not be imported by the engine.
PROGRAM: Sequence[str] = (sys.executable, "-P", "-m", "tinker_engine")

_DIRECTORY_IN_USE = 3  # exit code of `serve`: another process has the data directory
_STEP = 0.02  # seconds between looks at an engine that is starting
_IN_USE_PAUSE = 0.5  # seconds until the next attempt at a directory that is in use
_STOP_PATIENCE = 30.0  # seconds an engine has for saving its state when it is asked to end
_LAST_LINES = 8


def start_or_join(
    data: Path | None = None,
    *,
    models: Sequence[str] = (),
    timeout: float = 120,
    on_progress: Callable[[str], None] | None = None,
    on_death: Callable[[str], None] | None = None,
) -> "Engine":
    """The healthy engine of the data directory, started if there is none.

    `models` are loaded at start; an engine that is already there loads what it is asked for.
    `on_death` is called from a thread if the engine dies before this process does.
    """
    folder = (data or config.data_dir()).expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = _Log(folder / "engine.log")
    patience = _Patience(folder, timeout, on_progress)
    with _one_at_a_time(folder, patience):
        while (running := _join(folder) or _start(folder, log, models, patience)) is None:
            # Somebody starts one by hand, or an engine that nobody needs is still saving its state.
            patience.wait(_IN_USE_PAUSE, lambda: _who_has(folder))
        return Engine(folder, running, on_death)


def client_environment(engine: "Engine", environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that lead the SDK and the hub's tokenizer files to the engine, given those there are."""
    variables = {"TINKER_BASE_URL": engine.url, "TINKER_API_KEY": engine.key}
    for name, other in (("NO_PROXY", "no_proxy"), ("no_proxy", "NO_PROXY")):
        hosts = [host.strip() for host in (environ.get(name) or environ.get(other) or "").split(",")]
        hosts = [host for host in hosts if host]
        if "*" not in hosts:
            hosts += [host for host in ("127.0.0.1", "localhost") if host not in hosts]
        variables[name] = ",".join(hosts)
    defaults = {"HF_ENDPOINT": engine.url, "TINKER_TELEMETRY": "0"}
    return variables | {name: value for name, value in defaults.items() if not environ.get(name)}


@dataclass(frozen=True)
class _Record:
    """What an engine says of itself in `engine.json`."""

    pid: int
    url: str
    key: str
    log: Path

    @classmethod
    def read(cls, folder: Path) -> "_Record | None":
        path = folder / "engine.json"
        try:
            fields = json.loads(path.read_text())
            return cls(int(fields["pid"]), fields["url"], fields["key"], Path(fields["log"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):  # absent, or not an engine's
            return None
        except OSError as error:
            raise EngineError(
                f"cannot read {path}: {error.strerror}; use a data directory of your own"
            ) from None


@dataclass(frozen=True)
class _Running:
    """An engine that answered; `child` if this process started it."""

    record: _Record
    process: Process
    child: subprocess.Popen[bytes] | None = None


class Engine:
    """An engine that answered, and that this process is a parent of."""

    def __init__(self, folder: Path, running: "_Running", on_death: Callable[[str], None] | None):
        self.url = running.record.url
        self.key = running.record.key
        self.pid = running.record.pid
        self.log = running.record.log
        self.data = folder
        self.started_here = running.child is not None
        self._process = running.process
        self._child = running.child
        self._owner = os.getpid()
        self._stopping = False
        self._in_use = _share(folder / "users.lock")
        self._watcher = threading.Thread(
            target=self._watch, args=(on_death,), name="engine-watch", daemon=True
        )
        self._watcher.start()

    @property
    def alive(self) -> bool:
        return not self._process.gone(within=0)

    def stop(self) -> bool:
        """End the engine, for the process that started it.

        False, and nothing is done, if other processes have joined: it ends with the last of them.
        """
        if self._child is None or self._owner != os.getpid():
            raise EngineError(
                f"the engine (pid {self.pid}) was started by another process: leave it to that one"
            )
        if not self.alive:
            return True
        with _one_at_a_time(self.data, _Patience(self.data, _STOP_PATIENCE, None)):
            try:
                fcntl.flock(self._in_use, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                fcntl.flock(self._in_use, fcntl.LOCK_SH)  # a failed conversion gives up the old lock
                return False
            self._stopping = True
            _end(self._child)
        return True

    def _watch(self, on_death: Callable[[str], None] | None) -> None:
        self._process.gone(within=None)
        fate = self._process.fate()
        fcntl.flock(self._in_use, fcntl.LOCK_UN)
        if self._stopping:
            return
        reason = (
            f"the engine (pid {self.pid}) died: {fate}; {_Log(self.log, whole=True).describe()}; "
            f"start your script again: what the engine had accepted is in {self.data}"
        )
        try:
            if on_death is not None:
                on_death(reason)
        finally:
            tombstone.stand_in(self.url, reason)


def _join(folder: Path) -> _Running | None:
    """The engine that `engine.json` names, if it lives, answers and takes us for a parent.

    A file left behind by a killed engine may name a number or a port that is somebody else's by now.
    """
    record = _Record.read(folder)
    if record is None:
        return None
    try:
        process = Process(record.pid)
    except (ProcessLookupError, PermissionError):
        return None
    if not _healthy(record.url):
        return None
    body = json.dumps({"pid": os.getpid()}).encode()
    headers = {"x-api-key": record.key, "content-type": "application/json"}
    answer = _request("POST", f"{record.url}/engine/parents", body, headers)
    if answer is None or answer[0] != 200:
        return None
    return _Running(record, process)


def _start(folder: Path, log: "_Log", models: Sequence[str], patience: "_Patience") -> _Running | None:
    """A new engine, or None if another process has the directory."""
    child = _spawn(folder, log, models)
    process = Process.of_child(child)
    try:
        while not process.gone(within=_STEP):
            record = _Record.read(folder)
            if record is not None and record.pid == child.pid and _healthy(record.url):
                return _Running(record, process, child)
            patience.wait(0, log.describe)
    except BaseException:  # out of patience, or interrupted: nobody else knows of it
        _end(child)
        raise
    if child.wait() == _DIRECTORY_IN_USE:
        return None
    raise EngineError(f"the engine did not start: {process.fate()}; {log.describe()}")


def _spawn(folder: Path, log: "_Log", models: Sequence[str]) -> subprocess.Popen[bytes]:
    options = ["--data", str(folder), "--host", "127.0.0.1", "--port", "0", "--parent", str(os.getpid())]
    options += [word for model in models for word in ("--model", model)]
    descriptor = os.open(log.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        return subprocess.Popen(
            [*PROGRAM, "serve", *options],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            env=_engine_environment(),
            start_new_session=True,  # Ctrl-C is for the user's script, which may still want to save something
        )
    finally:
        os.close(descriptor)


def _engine_environment() -> dict[str, str]:
    """Ours, with the way to this package if it is imported from a source tree that was never installed."""
    root = str(Path(tinker_engine.__file__).parent.parent)
    if root in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return dict(os.environ)
    inherited = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": os.pathsep.join([inherited, root] if inherited else [root])}


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(_STOP_PATIENCE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _who_has(folder: Path) -> str:
    record = _Record.read(folder)
    who = "a process" if record is None else f"a process (pid {record.pid}, says engine.json)"
    return f"{who} has the directory but does not answer; end it, or use another data directory"


def _healthy(url: str) -> bool:
    answer = _request("GET", f"{url}/healthz")
    return answer is not None and answer[0] == 200 and b'"ok"' in answer[1]


def _request(
    method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> tuple[int, bytes] | None:
    """Status and body, or None if nobody answers. Proxies are never asked: this is the loopback."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=5)
    try:
        connection.request(method, parts.path, body, dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


class _Log:
    """The engine's log: what is added to it from now on, or the whole."""

    def __init__(self, path: Path, whole: bool = False):
        self.path = path
        self._start = path.stat().st_size if path.exists() and not whole else 0

    def describe(self) -> str:
        return f"its log is {self.path}; last lines: {self._last_lines() or '(none)'}"

    def _last_lines(self) -> str:
        """On one line, because that is how the SDK shows the message that they become part of."""
        if not self.path.exists():
            return ""
        with self.path.open("rb") as file:
            file.seek(max(self._start, file.seek(0, os.SEEK_END) - 4096))
            lines = file.read().decode(errors="replace").splitlines()
        return " | ".join([line.strip()[:300] for line in lines if line.strip()][-_LAST_LINES:])


class _Patience:
    """A deadline, and what the user hears while it is awaited."""

    def __init__(self, folder: Path, seconds: float, report: Callable[[str], None] | None):
        self._folder = folder
        self._seconds = seconds
        self._report = report
        self._start = time.monotonic()
        self._next_report = 1.0

    def wait(self, seconds: float, obstacle: Callable[[], str]) -> None:
        """Raises when the time is up; `obstacle` says what the user is told then."""
        waited = time.monotonic() - self._start
        if waited > self._seconds:
            raise EngineError(f"no engine on {self._folder} after {self._seconds:g} s: {obstacle()}")
        if waited >= self._next_report and self._report is not None:
            self._report(f"starting the engine on {self._folder} … {waited:.0f} s")
            self._next_report = waited + 10
        time.sleep(seconds)


@contextmanager
def _one_at_a_time(folder: Path, patience: _Patience) -> Iterator[None]:
    """Of several processes that come at once, one starts the engine and the others find it."""
    descriptor = os.open(folder / "start.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while not _locked(descriptor):
            patience.wait(_STEP, lambda: "another process is still starting or ending it; try again")
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough if another thread has forked meanwhile
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _share(path: Path) -> int:
    """A mark, held until this process ends, that it uses the engine. The kernel removes it even after kill -9."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor
