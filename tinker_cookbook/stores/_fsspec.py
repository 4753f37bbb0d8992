"""Files in an object store (s3://, gs://, abfs://, memory://, ...) through fsspec.

Object stores replace whole files and cannot append. Appends are therefore held in memory until `flush`, which reads
the file, adds to it and writes it back: one writer per file.
"""

import atexit
import logging
import tempfile
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.stores._base import BaseStorage, StorageStat, check_inside

logger = logging.getLogger(__name__)


def import_fsspec() -> Any:
    try:
        import fsspec
    except ImportError as error:
        raise ConfigurationError("paths with a scheme need fsspec: pip install fsspec") from error
    return fsspec


class FsspecStorage(BaseStorage):
    """`fs` is a filesystem of fsspec, or its protocol ("s3"), which is then opened with `fs_kwargs`.

    Appended data stays held until it has really been written: a `flush` that fails can be repeated.
    """

    def __init__(self, fs: Any, root: str = "", **fs_kwargs: Any) -> None:
        self._fs = import_fsspec().filesystem(fs, **fs_kwargs) if isinstance(fs, str) else fs
        self._root = root.rstrip("/")
        self._held: dict[str, bytearray] = {}
        self._held_since = 0.0
        self._lock = threading.RLock()

    def __reduce__(self):
        """A copy for another process; what is held here is written from here, once."""
        return type(self), (self._fs, self._root)

    def url(self, path: str = "") -> str:
        return self._fs.unstrip_protocol(self._key(path))

    def read(self, path: str) -> bytes:
        with self._lock:
            held = self._held.get(check_inside(path, self._root))
            return self._stored(path) + held if held else self._fs.cat_file(self._key(path))

    def write(self, path: str, data: bytes) -> None:
        with self._lock:
            self._put(path, data)
            self._drop(path)

    def append(self, path: str, data: bytes) -> None:
        name = check_inside(path, self._root)
        with self._lock:
            self._held.setdefault(name, bytearray()).extend(data)
            self._held_since = time.time()
            _holding.add(self)

    def exists(self, path: str) -> bool:
        return check_inside(path, self._root) in self._held or self._uncached().exists(self._key(path))

    def stat(self, path: str) -> StorageStat | None:
        with self._lock:
            held = self._held.get(check_inside(path, self._root), b"")
            try:
                info = self._uncached().info(self._key(path))
            except FileNotFoundError:
                return StorageStat(len(held), self._held_since) if held else None
            mtime = self._held_since if held else _modified(info)
            return StorageStat(int(info.get("size") or 0) + len(held), mtime)

    def read_range(self, path: str, offset: int, length: int | None = None) -> bytes:
        end = None if length is None else offset + length
        with self._lock:
            if check_inside(path, self._root) in self._held:
                return self.read(path)[offset:end]
            stat = self.stat(path)
            if stat is not None and offset >= stat.size:
                return b""  # which object stores refuse as an impossible range
            return self._fs.cat_file(self._key(path), start=offset, end=end)

    def list_dir(self, prefix: str) -> list[str]:
        folder = check_inside(prefix, self._root)
        try:
            found = self._uncached().ls(self._key(prefix), detail=False)
        except (FileNotFoundError, NotADirectoryError):
            found = []
        key = self._key(prefix).strip("/")
        names = {name.rstrip("/").rsplit("/", 1)[-1] for name in found if name.strip("/") != key}
        start = f"{folder}/" if folder else ""
        with self._lock:
            names |= {name[len(start) :].split("/")[0] for name in self._held if name.startswith(start)}
        return sorted(names)

    def remove(self, path: str) -> None:
        with self._lock:
            self._drop(path)
            if self._uncached().exists(self._key(path)):
                self._fs.rm_file(self._key(path))

    def remove_dir(self, path: str) -> None:
        folder = check_inside(path, self._root)
        with self._lock:
            for name in list(self._held):
                if name.startswith(f"{folder}/" if folder else ""):
                    self._drop(name)
            if self._uncached().exists(self._key(path)):
                self._fs.rm(self._key(path), recursive=True)

    def flush(self) -> None:
        """Write out what is held. Where that fails it stays held, and the first error is raised after the rest."""
        errors: list[Exception] = []
        with self._lock:
            for name in list(self._held):
                try:
                    self._put(name, self._stored(name) + self._held[name])
                except Exception as error:  # each backend has its own kinds; re-raised below
                    logger.error(
                        "could not write %s, will try again at the next flush: %s", self.url(name), error
                    )
                    errors.append(error)
                else:
                    self._drop(name)
        if errors:
            raise errors[0]

    def close(self) -> None:
        self.flush()

    def rescue(self) -> Path:
        """Save what could not be written to a folder of this machine."""
        folder = Path(tempfile.mkdtemp(prefix="tinker_unwritten_"))
        with self._lock:
            for name, data in self._held.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(data)
        return folder

    def _key(self, path: str) -> str:
        inside = check_inside(path, self._root)
        return f"{self._root}/{inside}" if inside else self._root

    def _uncached(self) -> Any:
        """Others write here too, and most backends remember what they listed."""
        self._fs.invalidate_cache()
        return self._fs

    def _stored(self, path: str) -> bytes:
        try:
            return self._fs.cat_file(self._key(path))
        except FileNotFoundError:
            return b""

    def _put(self, path: str, data: bytes) -> None:
        key = self._key(path)
        try:
            self._fs.pipe_file(key, data)
        except FileNotFoundError:  # a filesystem that has real folders
            self._fs.makedirs(key.rsplit("/", 1)[0], exist_ok=True)
            self._fs.pipe_file(key, data)

    def _drop(self, path: str) -> None:
        self._held.pop(check_inside(path, self._root), None)
        if not self._held:
            _holding.discard(self)


def fsspec_storage(uri: str, **fs_kwargs: Any) -> FsspecStorage:
    fs, root = import_fsspec().core.url_to_fs(uri, **fs_kwargs)
    return FsspecStorage(fs, root)


def _modified(info: dict[str, Any]) -> float:
    """Each backend has its own name and kind for the time of the last change."""
    for key in ("mtime", "LastModified", "last_modified", "updated", "created"):
        value = info.get(key)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
        if isinstance(value, str):
            return datetime.fromisoformat(value).timestamp()
    return 0.0


# Holds a storage alive as long as it has something to write, even if its user forgot it.
_holding: set[FsspecStorage] = set()


@atexit.register
def _flush_at_exit() -> None:
    for storage in list(_holding):
        try:
            storage.flush()
        except Exception:  # the last chance: the interpreter may already refuse new connections
            logger.exception(
                "could not write to %s at exit; what was left is in %s", storage.url(), storage.rescue()
            )
