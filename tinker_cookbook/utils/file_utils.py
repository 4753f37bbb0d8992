"""Reading files of data."""

import json

from tinker_cookbook.exceptions import DataFormatError
from tinker_cookbook.utils.misc_utils import local_folder


def read_jsonl(path: str) -> list[dict]:
    """The records of a file with one JSON object per line, on this machine or in a bucket. Empty lines are skipped."""
    return [
        _record(path, number, line) for number, line in enumerate(_read(path).split(b"\n"), 1) if line.strip()
    ]


def _read(path: str) -> bytes:
    local = local_folder(path)
    if local is not None:
        return local.read_bytes()
    from tinker_cookbook.stores.storage import storage_for_reading

    folder, _, name = path.rpartition("/")
    return storage_for_reading(folder).read(name)


def _record(path: str, number: int, line: bytes) -> dict:
    try:
        record = json.loads(line)
    except ValueError as error:  # not JSON, or not UTF-8
        raise DataFormatError(f"{path}, line {number}: not JSON ({error})") from error
    if not isinstance(record, dict):
        raise DataFormatError(f"{path}, line {number}: a JSON object is needed, not {type(record).__name__}")
    return record
