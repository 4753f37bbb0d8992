"""Rows of files that cannot be read at any place: written, once, to a temporary file that can."""

import json
import os
import pickle
import tempfile
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import BinaryIO, cast

from tinker_cookbook.exceptions import ConfigurationError, DataFormatError
from tinker_cookbook.supervised.rows.opening import open_seekable
from tinker_cookbook.supervised.rows.source import Row
from tinker_cookbook.supervised.rows.spans import SpanRows


class SpooledRows(SpanRows):
    """The temporary file has no name and goes with the process; a pickled copy writes its own."""

    def _open(self) -> BinaryIO:
        spool = cast(BinaryIO, tempfile.TemporaryFile(prefix="rows-"))  # noqa: SIM115  # kept open
        with open_seekable(self.name) as source:
            for row in self._rows(source):
                pickle.dump(row, spool)
        spool.flush()
        spool.seek(0)
        return spool

    @abstractmethod
    def _rows(self, source: BinaryIO) -> Iterable[object]: ...

    def _spans(self, file: BinaryIO) -> Iterator[tuple[int, int, int]]:
        size, number = os.fstat(file.fileno()).st_size, 0
        while (start := file.tell()) < size:
            pickle.load(file)
            number += 1
            yield start, file.tell(), number

    def _parse(self, data: bytes) -> Row:
        row = pickle.loads(data)
        if not isinstance(row, dict):
            raise DataFormatError(f"a JSON object is needed, not {type(row).__name__}")
        return row


class JsonArrayRows(SpooledRows):
    """One JSON array of objects. It is parsed whole, once, which takes some times its size of memory."""

    unit = "item"

    def _rows(self, source: BinaryIO) -> Iterable[object]:
        try:
            return json.loads(source.read().decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise DataFormatError(f"{self.name} is not JSON: {error}") from error


class ParquetRows(SpooledRows):
    unit = "row"

    def _rows(self, source: BinaryIO) -> Iterable[object]:
        try:
            import pyarrow  # pyright: ignore[reportMissingImports]
            import pyarrow.parquet  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ConfigurationError(
                f"{self.name} is a Parquet file; to read it, type: pip install pyarrow"
            ) from error
        try:
            for batch in pyarrow.parquet.ParquetFile(source).iter_batches(batch_size=1024):
                yield from batch.to_pylist()
        except pyarrow.ArrowException as error:
            raise DataFormatError(f"{self.name} cannot be read as Parquet: {error}") from error
