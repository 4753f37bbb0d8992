"""JSON and JSON lines over any storage. Every store reads and writes through here."""

import json
import logging
from collections.abc import Iterable
from typing import Any

from tinker_cookbook.exceptions import DataFormatError
from tinker_cookbook.stores._base import Storage
from tinker_cookbook.utils.jsonable import to_jsonable

logger = logging.getLogger(__name__)

Row = dict[str, Any]


def encode_lines(rows: Iterable[Row]) -> bytes:
    return "".join(json.dumps(to_jsonable(row)) + "\n" for row in rows).encode()


def decode_lines(data: bytes, source: str) -> list[Row]:
    """Skips a line that is not a JSON object, such as one that a crash cut off, with a warning."""
    rows: list[Row] = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode())
        except ValueError:
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            logger.warning(
                "skipping a line that is not a JSON object: %s, line %d of this read", source, number
            )
    return rows


def read_jsonl(storage: Storage, path: str) -> list[Row]:
    """Empty if there is no such file."""
    try:
        data = storage.read(path)
    except FileNotFoundError:
        return []
    return decode_lines(data, storage.url(path))


def read_json(storage: Storage, path: str) -> Row | None:
    """None if there is no such file."""
    try:
        data = storage.read(path)
    except FileNotFoundError:
        return None
    try:
        return json.loads(data)
    except ValueError as error:
        raise DataFormatError(f"{storage.url(path)} is not JSON ({error}); repair or delete it") from error


def write_json(storage: Storage, path: str, value: Row) -> None:
    storage.write(path, (json.dumps(to_jsonable(value), indent=2) + "\n").encode())


class LineAppender:
    """Appends whole lines, and never to the rest of a line that a crash or a full disk cut off."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._whole: set[str] = set()  # files known to end with a line feed, so that a look costs once

    def append(self, path: str, row: Row) -> None:
        line = encode_lines([row])
        if path not in self._whole and self._ends_within_line(path):
            logger.warning("%s ends within a line; going on after it", self._storage.url(path))
            line = b"\n" + line
        self._whole.discard(path)
        self._storage.append(path, line)
        self._whole.add(path)

    def _ends_within_line(self, path: str) -> bool:
        stat = self._storage.stat(path)
        size = stat.size if stat else 0
        return size > 0 and self._storage.read_range(path, size - 1, 1) != b"\n"
