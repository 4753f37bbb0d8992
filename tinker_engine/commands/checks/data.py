"""The data directory: can it be used, and is what it holds whole?"""

import errno
import fcntl
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
from tqdm import tqdm

from tinker_engine.commands.checks.finding import Finding, failed, ok, warning
from tinker_engine.commands.table import size
from tinker_engine.errors import DamagedError
from tinker_engine.store.folders import verify
from tinker_engine.store.schema import VERSION

LITTLE_DISK, TOO_LITTLE_DISK = 5_000_000_000, 500_000_000
# Where other machines can reach the files too, and locks may hold on one machine only.
NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "9p", "afs", "ceph", "gluster", "lustre", "fuse.sshfs")


def directory(data: Path) -> Iterator[Finding]:
    """Written to and locked for real: permissions alone do not tell of read-only mounts and full quotas."""
    place = existing(data)
    shown = str(data) if place == data else f"{data} (will be made in {place})"
    elsewhere = "choose another: tinker-engine serve --data DIR, or export TINKER_ENGINE_HOME=DIR"
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".doctor-") as file:
            file.write(b"x")
            file.flush()
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        locks = error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
        problem = "its file system has no locks" if locks else "cannot be written to"
        yield failed("data directory", f"{shown}: {problem} ({error.strerror})", elsewhere)
        return
    kind = file_system(place)
    if kind.startswith(NETWORK_FILE_SYSTEMS):
        yield warning(
            "data directory",
            f"{shown} is on a network file system ({kind}): the database may be damaged if two machines use it",
            elsewhere,
        )
    else:
        yield ok("data directory", shown)


def disk(data: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(existing(data)).free
    text = f"{size(free)} free"
    if free < TOO_LITTLE_DISK:
        yield failed("disk", text, f"delete checkpoints that you do not need, or other files near {data}")
    elif free < LITTLE_DISK:
        yield warning("disk", f"{text}: room for few checkpoints", f"free some space near {data}")
    else:
        yield ok("disk", text)


def database(data: Path) -> Iterator[Finding]:
    path = data / "engine.db"
    if not path.exists():
        yield ok("database", "none yet")
        return
    restore = f"stop the engine and restore {path} from a backup, or start anew with another --data directory"
    try:
        with closing(_opened(path)) as connection:
            answers = [row[0] for row in connection.execute("PRAGMA integrity_check(3)")]
            if answers != ["ok"]:
                yield failed("database", f"{path} is damaged: {'; '.join(answers)}", restore)
                return
            yield _format(path, connection)
    except sqlite3.Error as error:
        yield failed("database", f"{path} cannot be read: {error}", restore)


def checkpoints(data: Path) -> Iterator[Finding]:
    """Every file against the sum that was noted when it was written, and every one that the database knows of."""
    folders = [
        path
        for kind in ("checkpoints", "autosaves")
        for path in sorted((data / kind).glob("[!.]*"))
        if path.is_dir()
    ]
    damaged: list[str] = []
    for folder in tqdm(
        folders, desc="checkpoints", unit="folder", file=sys.stderr, disable=None, leave=False
    ):
        try:
            verify(folder)
        except DamagedError as error:
            if folder.exists():  # else the running engine has just removed it
                damaged.append(f"{folder}: {error}")
    damaged += [
        f"{folder} is gone, but the database knows it" for folder in _known(data) if not folder.exists()
    ]
    if damaged:
        yield failed(
            "checkpoints",
            f"{len(damaged)} of {len(folders)} damaged: {'; '.join(damaged[:3])}",
            "restore these folders from a backup, or delete the checkpoints with the SDK",
        )
    else:
        yield ok("checkpoints", f"{len(folders)} whole" if folders else "none yet")


def existing(path: Path) -> Path:
    """It, or the nearest folder above it that is there."""
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def file_system(path: Path) -> str:
    """Its kind, e.g. ext4; empty if unknown."""
    mounts = {partition.mountpoint: partition.fstype for partition in psutil.disk_partitions(all=True)}
    return next(
        (
            mounts[str(folder)]
            for folder in (path.resolve(), *path.resolve().parents)
            if str(folder) in mounts
        ),
        "",
    )


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=10)


def _format(path: Path, connection: sqlite3.Connection) -> Finding:
    row = connection.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()
    if row is None or row[0] != str(VERSION):
        found = "none" if row is None else row[0]
        return failed(
            "database",
            f"{path} is in format {found}; this version reads {VERSION}",
            "use the version that wrote it, or another --data directory",
        )
    return ok("database", f"whole ({size(path.stat().st_size)})")


def _known(data: Path) -> list[Path]:
    if not (data / "engine.db").exists():
        return []
    try:
        with closing(_opened(data / "engine.db")) as connection:
            return [data / row[0] for row in connection.execute("SELECT ref FROM checkpoints")]
    except sqlite3.Error:
        return []  # `database` says what is wrong with it
