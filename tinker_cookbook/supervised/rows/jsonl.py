"""Files with one JSON object per line."""

import json
from collections.abc import Iterable
from typing import BinaryIO

from tinker_cookbook.exceptions import DataFormatError
from tinker_cookbook.supervised.rows.opening import BYTE_ORDER_MARK
from tinker_cookbook.supervised.rows.source import Row
from tinker_cookbook.supervised.rows.spans import SpanRows


class JsonlRows(SpanRows):
    """Empty lines are no rows, and count as lines."""

    def _spans(self, file: BinaryIO) -> Iterable[tuple[int, int, int]]:
        start = 0
        for number, line in enumerate(file, 1):
            end = start + len(line)
            if number == 1 and line.startswith(BYTE_ORDER_MARK):
                start, line = len(BYTE_ORDER_MARK), line[len(BYTE_ORDER_MARK) :]
            if line.strip():
                yield start, end, number
            start = end

    def _parse(self, data: bytes) -> Row:
        try:
            row = json.loads(data.decode())
        except UnicodeDecodeError as error:
            raise DataFormatError(f"not UTF-8 (byte {error.start} of the line)") from error
        except (ValueError, RecursionError) as error:
            raise DataFormatError(f"not JSON ({error})") from error
        if not isinstance(row, dict):
            raise DataFormatError(f"a JSON object is needed, not {type(row).__name__}")
        return row
