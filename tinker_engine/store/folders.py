"""Folders that are there whole or not at all, and that notice damage.

Written under a temporary name, every file synced, a manifest of SHA-256 sums last, then renamed. A crash at any
moment leaves either nothing or a folder whose name starts with a dot, which start-up removes.
"""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tinker_engine.errors import DamagedError

MANIFEST = "manifest.json"


@contextmanager
def whole_folder(final: Path, *, sync: bool = True) -> Iterator[Path]:
    """A folder to write into, which becomes `final` when the block ends without an error.

    `sync=False` survives the death of the process but not of the machine.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = final.parent / f".{final.name}.{secrets.token_hex(4)}"
    temporary.mkdir()
    try:
        yield temporary
        _write_manifest(temporary)
        if sync:
            for path in temporary.rglob("*"):
                _sync(path)
            _sync(temporary)
        temporary.rename(final)
        if sync:
            _sync(final.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def verify(folder: Path) -> dict[str, int]:
    """The folder's files and their sizes, if each is as it was written."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        files = {name: (int(entry["size"]), entry["sha256"]) for name, entry in manifest["files"].items()}
    except FileNotFoundError as error:
        raise DamagedError(f"{folder.name} is gone or incomplete: it has no manifest") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"the manifest of {folder.name} cannot be read: {error}") from error
    for name, (size, digest) in files.items():
        path = folder / name
        if not path.is_file():
            raise DamagedError(f"{folder.name} is damaged: {name} is missing")
        if path.stat().st_size != size or _digest(path) != digest:
            raise DamagedError(f"{folder.name} is damaged: {name} is not what was written")
    return {name: size for name, (size, _) in files.items()}


def folder_size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def remove_folder(folder: Path) -> None:
    """At once for readers: it is renamed away before it is emptied."""
    if not folder.exists():
        return
    gone = folder.parent / f".{folder.name}.{secrets.token_hex(4)}.gone"
    folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def remove_unknown(parent: Path, known: set[str]) -> list[str]:
    """Remove what nobody refers to, e.g. what a crash left half-written; the names of what went."""
    if not parent.is_dir():
        return []
    unknown = [path for path in parent.iterdir() if path.name not in known]
    for path in unknown:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    return [path.name for path in unknown]


def write_file(final: Path, content: bytes, *, sync: bool) -> None:
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = final.parent / f".{final.name}.{secrets.token_hex(4)}"
    try:
        with temporary.open("wb") as file:
            file.write(content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        temporary.rename(final)
        if sync:
            _sync(final.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _write_manifest(folder: Path) -> None:
    files = {
        str(path.relative_to(folder)): {"size": path.stat().st_size, "sha256": _digest(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    (folder / MANIFEST).write_text(json.dumps({"format": 1, "files": files}, indent=1) + "\n")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
