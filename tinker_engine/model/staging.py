"""Folders that appear whole or not at all.

A model folder is filled under a hidden name beside its place and renamed when complete, so a
crash, a full disk or Ctrl-C never leaves half a model where the loader looks. The hidden name
is fixed and guarded by a lock: what a killed process left behind is cleared by the next one.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from tinker_engine.errors import EngineError

# Longer than any download we expect; the lock of a process that died is free at once.
_LOCK_SECONDS = 6 * 3600


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Hold `target` against other processes; wait, and say so, while another one installs it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(_hidden(target, "lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        print(f"another process is installing {target.name}; waiting for it", file=sys.stderr)
        try:
            lock.acquire(timeout=_LOCK_SECONDS)
        except Timeout as error:
            raise EngineError(
                f"another process still holds {lock.lock_file} after {_LOCK_SECONDS // 3600} hours; "
                "end that process and try again"
            ) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """An empty folder that replaces `target` if the block ends well and is removed if not.

    Use under `locked(target)`.
    """
    staging, replaced = _hidden(target, "partial"), _hidden(target, "replaced")
    _clear(staging)
    staging.mkdir(parents=True)
    try:
        yield staging
        _sync(staging)
    except BaseException:
        _clear(staging)
        raise
    _clear(replaced)
    if target.exists():
        # A folder cannot be renamed over a full one. Between these two lines there is no model,
        # which a reader sees as "not pulled": never as half of it.
        target.rename(replaced)
    staging.rename(target)
    _sync_folder(target.parent)
    _clear(replaced)


def _hidden(target: Path, suffix: str) -> Path:
    return target.parent / f".{target.name}.{suffix}"


def _clear(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _sync(folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        elif path.is_dir():
            _sync_folder(path)
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":  # elsewhere a folder cannot be opened, and renames are journalled
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
