"""Rows by number, wherever they are stored: what reading a file, a folder or a Hugging Face data set comes to."""

import bisect
import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]


class Rows(ABC):
    """Random access to rows that are not held in memory. Can be pickled, and read from several threads."""

    name: str  # for people: the path, or the name on the hub

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> Row:
        """DataFormatError, with the reason alone, for a row that cannot be read."""

    @abstractmethod
    def where(self, index: int) -> str:
        """For people who want to look at this row: file and line."""

    def parts(self) -> Sequence["Rows"]:
        """The files it is made of, each of which may have a format of its own."""
        return [self]


class JoinedRows(Rows):
    """Files one after another."""

    def __init__(self, name: str, parts: Sequence[Rows]):
        self.name = name
        self._parts = list(parts)
        self._ends = list(itertools.accumulate(len(part) for part in self._parts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> Row:
        part, at = self.locate(index)
        return self._parts[part][at]

    def where(self, index: int) -> str:
        part, at = self.locate(index)
        return self._parts[part].where(at)

    def parts(self) -> Sequence[Rows]:
        return self._parts

    def locate(self, index: int) -> tuple[int, int]:
        """Which part a row is in, and its number there."""
        if not 0 <= index < len(self):
            raise IndexError(f"{self.name} has {len(self)} rows, and none is number {index}")
        part = bisect.bisect_right(self._ends, index)
        return part, index - (self._ends[part - 1] if part else 0)
