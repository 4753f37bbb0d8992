"""Rows as spans of bytes: an index of where each begins, and the file itself for the rest.

The index takes 16 bytes a row, so that a file of any size can be shuffled in little memory.
"""

import os
import threading
from abc import abstractmethod
from array import array
from collections.abc import Iterable
from typing import Any, BinaryIO

from tinker_cookbook.exceptions import DataValidationError
from tinker_cookbook.supervised.rows.opening import open_seekable
from tinker_cookbook.supervised.rows.source import Row, Rows


class SpanRows(Rows):
    """A seekable file and the spans of its rows. A subclass finds the spans and reads what is in one."""

    unit = "line"

    def __init__(self, path: str):
        self.name = path
        self._lock = threading.Lock()
        self._file: BinaryIO | None = None
        self._starts, self._ends, self._numbers = array("q"), array("q"), array("q")
        with self._lock:
            file = self._opened()
            self._size = os.fstat(file.fileno()).st_size
            for start, end, number in self._spans(file):
                self._starts.append(start)
                self._ends.append(end)
                self._numbers.append(number)

    @abstractmethod
    def _spans(self, file: BinaryIO) -> Iterable[tuple[int, int, int]]:
        """First byte, the byte after the last, and the number people know the row by. `file` stands at its start."""

    @abstractmethod
    def _parse(self, data: bytes) -> Row: ...

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> Row:
        if not 0 <= index < len(self):
            raise IndexError(f"{self.name} has {len(self)} rows, and none is number {index}")
        return self._parse(self._read(self._starts[index], self._ends[index]))

    def where(self, index: int) -> str:
        return f"{self.name}, {self.unit} {self._numbers[index]}"

    def _read(self, start: int, end: int) -> bytes:
        with self._lock:
            file = self._opened()
            if os.fstat(file.fileno()).st_size != self._size:
                raise DataValidationError(
                    f"{self.name} has changed since it was first read; start again, and leave it alone meanwhile"
                )
            file.seek(start)
            return file.read(end - start)

    def _opened(self) -> BinaryIO:
        if self._file is None:
            self._file = self._open()
        return self._file

    def _open(self) -> BinaryIO:
        return open_seekable(self.name)

    # --- pickling: another process opens the file for itself ----------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in ("_lock", "_file")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()
        self._file = None
