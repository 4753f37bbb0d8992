"""Following a file of JSON lines that another process is still writing."""

import threading
from collections import deque
from typing import Any

from tinker_cookbook.stores._base import Storage, in_thread
from tinker_cookbook.stores._jsonl import Row, decode_lines

_MAX_RECORDS = 50_000


class IncrementalReader:
    """Each `read` gives the lines completed since the one before. Keeps the latest `max_records`."""

    def __init__(self, storage: Storage, path: str, max_records: int = _MAX_RECORDS) -> None:
        self._storage = storage
        self._path = path
        self._offset = 0
        self._records: deque[Row] = deque(maxlen=max_records)
        self._total = 0
        self._keys: set[str] = set()
        self._lock = threading.Lock()

    @property
    def records(self) -> list[Row]:
        with self._lock:
            return list(self._records)

    @property
    def total_read(self) -> int:
        return self._total

    @property
    def known_keys(self) -> set[str]:
        """Of all records ever read, without "step"."""
        with self._lock:
            return self._keys - {"step"}

    def read(self) -> list[Row]:
        with self._lock:
            new = decode_lines(self._completed(), self._storage.url(self._path))
            self._records.extend(new)
            self._total += len(new)
            self._keys.update(*new)
            return new

    aread = in_thread(read)

    def has_data(self) -> bool:
        stat = self._storage.stat(self._path)
        return stat is not None and stat.size > 0

    def _completed(self) -> bytes:
        stat = self._storage.stat(self._path)
        if stat is None:
            return b""
        if stat.size < self._offset:  # the file was replaced by a shorter one
            self._offset = 0
            self._records.clear()
        if stat.size == self._offset:
            return b""
        data = self._storage.read_range(self._path, self._offset)
        completed = data[: data.rfind(b"\n") + 1]
        self._offset += len(completed)
        return completed

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()
