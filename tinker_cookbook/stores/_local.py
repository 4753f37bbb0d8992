"""Files in a folder of this machine."""

import os
import shutil
import uuid
from contextlib import suppress
from pathlib import Path

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.stores._base import BaseStorage, StorageStat

_UNFINISHED = ".unfinished"  # a write that has not been renamed yet, or never will be


class LocalStorage(BaseStorage):
    """A write replaces the file whole or not at all. An append is one call, so that lines of two writers do not mix."""

    def __init__(self, root: str | Path, *, mkdir: bool = True) -> None:
        self._root = Path(root).expanduser().resolve()
        if mkdir:
            self._root.mkdir(parents=True, exist_ok=True)

    @property
    def root(self) -> Path:
        return self._root

    def url(self, path: str = "") -> str:
        return str(self._path(path))

    def read(self, path: str) -> bytes:
        return self._path(path).read_bytes()

    def write(self, path: str, data: bytes) -> None:
        target = self._path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}{_UNFINISHED}")
        try:
            with unfinished.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())  # else a power cut may leave the new name with no content
            unfinished.replace(target)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise

    def append(self, path: str, data: bytes) -> None:
        target = self._path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("ab", buffering=0) as file:
            while data:  # one round, unless the disk fills up or the system interrupts
                data = data[file.write(data) :]

    def exists(self, path: str) -> bool:
        return self._path(path).exists()

    def stat(self, path: str) -> StorageStat | None:
        try:
            found = self._path(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return StorageStat(size=found.st_size, mtime=found.st_mtime)

    def read_range(self, path: str, offset: int, length: int | None = None) -> bytes:
        with self._path(path).open("rb") as file:
            file.seek(offset)
            return file.read(-1 if length is None else length)

    def list_dir(self, prefix: str) -> list[str]:
        try:
            names = os.listdir(self._path(prefix))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(name for name in names if not name.endswith(_UNFINISHED))

    def remove(self, path: str) -> None:
        self._path(path).unlink(missing_ok=True)

    def remove_dir(self, path: str) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self._path(path))

    def flush(self) -> None:
        """Nothing is held back here."""

    def _path(self, path: str) -> Path:
        """Follows links, so that one which leads out of the root is found too."""
        found = (self._root / path).resolve()
        if not found.is_relative_to(self._root):
            raise ConfigurationError(
                f"{path!r} escapes {self._root}; give a path relative to it, without '..'"
            )
        return found
