"""`tinker-engine serve`: the api process, from the lock on the data directory to the last save."""

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from logging.handlers import RotatingFileHandler
from pathlib import Path

import uvicorn

from tinker_engine.api.app import create_app
from tinker_engine.api.auth import PREFIX, Access, digest
from tinker_engine.core import journal
from tinker_engine.core.engine import Engine
from tinker_engine.core.settings import Limits, Settings
from tinker_engine.errors import BusyError, EngineError, InputError, LockedError
from tinker_engine.model.folders import installed_models, resolve
from tinker_engine.process import Process
from tinker_engine.store.folders import write_file

log = logging.getLogger(__name__)

LOOPBACK = ("127.0.0.1", "::1", "localhost")
LOCAL_OWNER = "local"
LOG_BYTES = 20 << 20
CLIENT_HTTP = "TINKER_ENGINE_CLIENT_HTTP"


@dataclass(frozen=True)
class ServeOptions:
    data: Path
    host: str = "127.0.0.1"
    port: int = 0  # 0: any that is free
    models: tuple[str, ...] = ()  # names or folders; none: all that are installed
    keys: Path | None = None  # lines of OWNER:KEY
    database: str | None = None
    durable: bool | None = None  # None: only when others than this machine are served
    parent: int | None = None  # end with this process
    limits: Limits = field(default_factory=Limits)


def serve(options: ServeOptions) -> int:
    """Until SIGTERM, or the end of all parents."""
    options.data.mkdir(parents=True, exist_ok=True)
    with locked(options.data):
        start_log(options.data / "engine.log")
        try:
            asyncio.run(_serve(options))
        except EngineError as error:
            log.error("the engine cannot start: %s", error)
            raise
    return 0


@contextlib.contextmanager
def locked(data: Path) -> Iterator[None]:
    """One engine per data directory: it is the only writer of its journal."""
    with (data / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LockedError(
                f"another engine is using {data}; stop it, use it (its address is in {data / 'engine.json'}), or "
                "choose another --data directory"
            ) from error
        yield


async def _serve(options: ServeOptions) -> None:
    keys = read_keys(options)
    settings = Settings(
        options.data,
        served_models(options.models),
        keys,
        options.database,
        options.host not in LOOPBACK if options.durable is None else options.durable,
        os.environ.get("HF_ENDPOINT") or Settings.hub,
        _compiled_client(os.environ.get(CLIENT_HTTP) or "pyqwest"),
        options.limits,
    )
    engine = Engine(settings)
    parents = Parents()
    if options.parent is not None:
        parents.watch(options.parent)
    watch = parents.watch if options.parent is not None else _no_parents
    server = _Server(create_app(engine, await _access(engine), watch), options, engine, parents)
    await engine.start()
    try:
        await server.run(options.data, next(iter(keys)))
    finally:
        (options.data / "engine.json").unlink(missing_ok=True)
        await engine.stop()


def _compiled_client(name: str) -> bool:
    if name not in ("pyqwest", "httpx"):
        raise InputError(CLIENT_HTTP, f"is {name!r}; the SDK has pyqwest (compiled) and httpx (plain Python)")
    return name == "pyqwest"


async def _access(engine: Engine) -> Access:
    owners = {digest(key): owner for key, owner in engine.settings.keys.items()}
    await engine.database.write(journal.replace_keys(owners))
    secret = await engine.database.write(journal.setting("token_secret", secrets.token_hex(32)))
    return Access(owners, secret)


class _Server:
    def __init__(self, app: object, options: ServeOptions, engine: Engine, parents: "Parents"):
        config = uvicorn.Config(
            app,  # pyright: ignore[reportArgumentType]
            http="httptools",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=120,
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)
        self._engine = engine
        self._parents = parents
        self._socket = _listen(options.host, options.port)

    async def run(self, data: Path, key: str) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end, signal.Signals(number).name)
        self._parents.on_last = lambda: self._end("the last process that used the engine has ended")
        serving = asyncio.create_task(self._server._serve([self._socket]))
        host, port = self._socket.getsockname()[:2]
        address = {
            "pid": os.getpid(),
            "url": f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}",
            "key": key,
            "log": str(data / "engine.log"),
            "version": version(),
        }
        write_private(data / "engine.json", address)
        log.info("serving", extra={"url": address["url"]})
        print(f"serving at {address['url']} (key, log and data: {data})", file=sys.stderr, flush=True)
        await serving

    def _end(self, why: str) -> None:
        log.info("ending: %s", why)
        self._parents.ending = True
        self._engine.begin_stop()
        self._server.should_exit = True


def _no_parents(_: int) -> None:
    """An engine that was started by hand ends by hand: nobody who only uses it can end it for the others."""


class Parents:
    """Processes the engine lives for."""

    def __init__(self) -> None:
        self._watched: set[int] = set()
        self.on_last = lambda: None
        self.ending = False

    def watch(self, pid: int) -> None:
        if self.ending:
            raise BusyError("this engine is ending; start another", retry_after=1)
        if pid in self._watched:
            return
        try:
            process = Process(pid)
        except ProcessLookupError as error:
            raise InputError("pid", f"{pid} is no process on this machine") from error
        self._watched.add(pid)
        loop = asyncio.get_running_loop()

        def wait() -> None:
            process.gone(None)
            with contextlib.suppress(RuntimeError):  # the loop has ended before
                loop.call_soon_threadsafe(self._gone, pid)

        threading.Thread(target=wait, name=f"parent-{pid}", daemon=True).start()

    def _gone(self, pid: int) -> None:
        self._watched.remove(pid)
        if not self._watched:
            self.ending = True
            self.on_last()


def read_keys(options: ServeOptions) -> dict[str, str]:
    """Owner by key: from the file, else from TINKER_ENGINE_KEYS, else one at random for this machine alone."""
    text = os.environ.get("TINKER_ENGINE_KEYS", "").replace(",", "\n")
    if options.keys is not None:
        try:
            text = options.keys.read_text()
        except OSError as error:
            raise InputError("--keys", f"cannot be read: {error}") from error
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not lines and options.host in LOOPBACK:
        return {_local_key(options.data / "local.key"): LOCAL_OWNER}
    if not lines:
        raise InputError(
            "--host",
            f"{options.host} can be reached by others, so keys are needed: --keys FILE with lines OWNER:KEY "
            f"(a key begins with {PREFIX}), or TINKER_ENGINE_KEYS=OWNER:KEY,…",
        )
    return dict(_key(line) for line in lines)


def _local_key(path: Path) -> str:
    """Drawn once per data directory, so that clients of an engine that was restarted find it unchanged."""
    if not path.exists():
        write_private(path, f"{PREFIX}{secrets.token_hex(24)}")
    return json.loads(path.read_text())


def _key(line: str) -> tuple[str, str]:
    owner, _, key = line.partition(":")
    if not owner or not key.startswith(PREFIX) or len(key) < 20:
        raise InputError(
            "--keys",
            f"a line must be OWNER:KEY and a key {PREFIX} and at least 16 more characters, got {owner[:20]!r}:…",
        )
    return key, owner


def served_models(names: tuple[str, ...]) -> dict[str, Path]:
    if not names:
        return dict(installed_models())
    return {name: resolve(name) for name in names}


def write_private(path: Path, content: object) -> None:
    """For this user's eyes: it holds a key."""
    old = os.umask(0o077)
    try:
        write_file(path, json.dumps(content).encode(), sync=False)
    finally:
        os.umask(old)


def version() -> str:
    try:
        return metadata.version("open-tinker-cookbook")
    except metadata.PackageNotFoundError:
        return "unknown"


class JsonLines(logging.Formatter):
    """One JSON object per line, so that a log can be searched by field."""

    _OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "source": record.name,
            "message": record.getMessage(),
        }
        entry |= {name: value for name, value in vars(record).items() if name not in self._OWN}
        if record.exc_info and record.exc_info[1] is not None:
            entry["traceback"] = "".join(traceback.format_exception(record.exc_info[1]))
        return json.dumps(entry, default=str)


def start_log(path: Path) -> None:
    handler = RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=3)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise InputError("--port", f"cannot listen on {host}:{port}: {error}") from error
    # Inherited by every connection. Without it an answer's second segment waits 40 ms for the client's delayed
    # acknowledgement: asyncio sets it only on sockets that name their protocol, which these do not.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
