"""Tables as text: columns between commas, tabs or semicolons, named in the first line."""

import csv
import io
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from tinker_cookbook.exceptions import DataFormatError
from tinker_cookbook.supervised.rows.opening import BYTE_ORDER_MARK
from tinker_cookbook.supervised.rows.source import Row
from tinker_cookbook.supervised.rows.spans import SpanRows

_LONGEST_CELL = 2**31 - 1  # the module's own limit of 128 KiB is less than one long document


class CsvRows(SpanRows):
    """A cell in quotes may hold line breaks; a row is known by the line it begins on."""

    def __init__(self, path: str):
        self._columns: list[str] = []
        self._delimiter = ","
        csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_CELL))
        super().__init__(path)

    def _spans(self, file: BinaryIO) -> Iterable[tuple[int, int, int]]:
        lines = _Lines(file)
        header = lines.first()
        self._delimiter = max(",;\t", key=header.count)  # the first of them, where there is none
        self._columns = next(self._reader([header]), [])
        start = lines.end
        reader = self._reader(lines)
        while True:
            number = lines.count + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error:
                cells = ["?"]  # the span is a row; what is wrong with it is said when it is read
            if cells:
                yield start, lines.end, number
            start = lines.end

    def _parse(self, data: bytes) -> Row:
        try:
            cells = next(self._reader(io.StringIO(data.decode(), newline="")), [])
        except UnicodeDecodeError as error:
            raise DataFormatError(f"not UTF-8 (byte {error.start} of the row)") from error
        except csv.Error as error:
            raise DataFormatError(_reason(error)) from error
        if len(cells) != len(self._columns):
            raise DataFormatError(f"{len(cells)} cells for the {len(self._columns)} columns of the header")
        return dict(zip(self._columns, cells, strict=True))

    def _reader(self, lines: Iterable[str]) -> Iterator[list[str]]:
        return csv.reader(lines, delimiter=self._delimiter, strict=True)


class _Lines:
    """Lines as text for the csv module, which may take several for a row; `end` is where the last one ends.

    Bytes that are not UTF-8 are let through here, so that the row they are in can be named.
    """

    def __init__(self, file: BinaryIO):
        self._file = file
        self.end = 0
        self.count = 0

    def first(self) -> str:
        """The line with the names of the columns."""
        for line in self:
            if line.strip():
                return line.removeprefix(BYTE_ORDER_MARK.decode())
        return ""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._file)
        self.end += len(line)
        self.count += 1
        return line.decode(errors="surrogateescape")


def _reason(error: csv.Error) -> str:
    if "unexpected end of data" in str(error):
        return "a quote is opened and never closed"
    return f"not CSV ({error})"
