"""How clients reach the engine, and what could lead them astray."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import psutil

from tinker_engine.commands.address import Address, ask, read
from tinker_engine.commands.checks.finding import Finding, failed, ok, warning
from tinker_engine.errors import EngineError

DEFAULT_PORT = 8899
LOOPBACK = ("127.0.0.1", "localhost")


def engine(data: Path) -> Iterator[Finding]:
    path = data / "engine.json"
    try:
        address = read(data)
    except EngineError as error:
        yield failed("engine", str(error), f"rm {path}")
        return
    if address is None:
        yield ok("engine", "none is running")
        return
    try:
        health = ask(address, "/healthz")
    except EngineError as error:
        yield _silent(path, address, error)
        return
    yield ok("engine", f"answers at {address.url} (compute process {health.get('compute_pid')})")


def port(data: Path) -> Iterator[Finding]:
    """Whether a program here can be reached at all, and whether the port that `serve` takes is free."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        yield failed(
            "loopback",
            f"cannot be used: {error}",
            "allow connections to 127.0.0.1 in your firewall or sandbox",
        )
        return
    if (running := _written(data)) is not None and urlsplit(running.url).port == DEFAULT_PORT:
        yield ok("port", f"{DEFAULT_PORT} is the engine's")
        return
    try:
        socket.create_server(("127.0.0.1", DEFAULT_PORT)).close()
        yield ok("port", f"{DEFAULT_PORT} is free")
    except OSError as error:
        yield warning(
            "port",
            f"{DEFAULT_PORT} is taken ({error.strerror})",
            "tinker-engine serve --port 0 takes any free one",
        )


def proxies() -> Iterator[Finding]:
    """Clients of a proxy that does not know this machine's loopback get its error page instead of the engine."""
    found = getproxies_environment()
    caught = [
        host
        for host in LOOPBACK
        if any(found.get(kind) for kind in ("http", "all")) and not proxy_bypass(host)
    ]
    if caught:
        yield warning(
            "proxies",
            f"the proxy of your environment catches {' and '.join(caught)}, where the engine is",
            "export NO_PROXY=127.0.0.1,localhost no_proxy=127.0.0.1,localhost (tinker-engine run does it for you)",
        )
    else:
        yield ok("proxies", "none between clients and the engine")


def variables(data: Path) -> Iterator[Finding]:
    url, key = os.environ.get("TINKER_BASE_URL"), os.environ.get("TINKER_API_KEY")
    running = _written(data)
    own = running.url if running is not None else None
    if url and url.rstrip("/") != own:
        there = f"the engine of this directory is at {own}" if own else "no engine runs on this directory"
        yield warning("TINKER_BASE_URL", f"clients go to {url}; {there}", "unset TINKER_BASE_URL")
    elif key and not url:
        yield warning(
            "TINKER_API_KEY",
            "is set without TINKER_BASE_URL: the SDK goes to the hosted service, not to the engine",
            "unset TINKER_API_KEY, or run your script with: tinker-engine run -- COMMAND",
        )
    else:
        yield ok("TINKER_* variables", "lead nowhere else")
    if key and not key.startswith("tml-"):
        yield warning(
            "TINKER_API_KEY", "the SDK refuses keys that do not begin with tml-", "unset TINKER_API_KEY"
        )


def _written(data: Path) -> Address | None:
    try:
        return read(data)
    except EngineError:
        return None  # `engine` says what is wrong with it


def _silent(path: Path, address: Address, error: EngineError) -> Finding:
    if address.pid is not None and psutil.pid_exists(address.pid):
        return failed(
            "engine",
            f"process {address.pid} is there but does not answer: {error}",
            f"look into {path.with_name('engine.log')}; if it is no engine: rm {path}",
        )
    return warning(
        "engine",
        f"{path} was left behind by an engine that was killed (process {address.pid})",
        "nothing: the next engine goes on where it was and writes its own",
    )
