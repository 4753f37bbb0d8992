"""A PostgreSQL of one's own: in a temporary folder, on a loopback port, gone after the test."""

import getpass
import glob
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

UNPRIVILEGED = ("postgres", "nobody")  # PostgreSQL refuses to run as root


@cache
def binaries() -> Path | None:
    found = shutil.which("initdb")
    candidates = [Path(found).resolve().parent] if found else []
    candidates += [Path(folder) for folder in sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)]
    return next((c for c in candidates if (c / "initdb").exists() and (c / "postgres").exists()), None)


@contextmanager
def running_postgres() -> Iterator[str]:
    """The URL of its database. Skips the test where PostgreSQL is not installed."""
    programs = binaries()
    if programs is None:
        pytest.skip("PostgreSQL is not installed: there is no initdb on PATH or in /usr/lib/postgresql")
    user = _account()
    with tempfile.TemporaryDirectory(
        prefix="postgres-"
    ) as folder:  # not below tmp_path, which only we may enter
        if user is not None:
            shutil.chown(folder, user)
        data = f"{folder}/data"
        initdb = [
            programs / "initdb",
            "--no-sync",
            "-D",
            data,
            "-U",
            "engine",
            "--auth=trust",
            "--encoding=UTF8",
        ]
        subprocess.run(initdb, check=True, user=user, cwd=folder, capture_output=True, timeout=120)
        port = _free_port()
        options = f"-c listen_addresses=127.0.0.1 -p {port} -c unix_socket_directories={folder} -c fsync=off"
        control = [programs / "pg_ctl", "-D", data, "-w", "-t", "60"]
        try:
            with (Path(folder) / "log").open("wb") as log:
                subprocess.run(
                    [*control, "-o", options, "start"],
                    check=True,
                    user=user,
                    cwd=folder,
                    stdout=log,
                    timeout=120,
                )
            yield f"postgresql+psycopg://engine@127.0.0.1:{port}/postgres"
        finally:
            subprocess.run(
                [*control, "-m", "immediate", "stop"], user=user, cwd=folder, capture_output=True, timeout=120
            )


def _account() -> str | None:
    if os.geteuid() != 0:
        return None
    for name in UNPRIVILEGED:
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    pytest.skip(f"PostgreSQL does not run as {getpass.getuser()}, and there is none of {UNPRIVILEGED}")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
