"""Which files a name stands for, and how each is read."""

import logging
from pathlib import Path
from typing import BinaryIO

from tinker_cookbook.exceptions import DataFormatError, DataValidationError
from tinker_cookbook.supervised.rows.csv_file import CsvRows
from tinker_cookbook.supervised.rows.hub import is_saved_dataset, load_from_hub, load_saved
from tinker_cookbook.supervised.rows.jsonl import JsonlRows
from tinker_cookbook.supervised.rows.opening import BYTE_ORDER_MARK, COMPRESSED, has_data, open_seekable
from tinker_cookbook.supervised.rows.source import JoinedRows, Rows
from tinker_cookbook.supervised.rows.spooled import JsonArrayRows, ParquetRows
from tinker_cookbook.utils.misc_utils import local_folder

logger = logging.getLogger(__name__)

_JSON = (".jsonl", ".ndjson", ".json")
_TABLES = (".csv", ".tsv")
_PARQUET = (".parquet", ".pq")
_SUFFIXES = (*_JSON, *_TABLES, *_PARQUET)
_HELD_OUT = ("test", "valid", "validation", "val", "dev", "eval")


def open_rows(path: str, *, subset: str | None = None, split: str = "train") -> Rows:
    """A file, a folder of files, or the name of a data set on the hub; `subset` and `split` are for the latter."""
    local = local_folder(path)
    if local is None or local.is_file():
        return _checked(_open_file(path))
    if local.is_dir():
        return load_saved(local, split) if is_saved_dataset(local) else _open_folder(path, local)
    if _suffix(path) or path.startswith(("/", "./", "../", "~")):
        raise DataFormatError(f"there is no file {path}")
    return _checked(load_from_hub(path, subset, split))


def _open_folder(path: str, folder: Path) -> Rows:
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.is_file() and _suffix(file.name) and not _is_hidden(file.relative_to(folder))
    )
    if not files:
        raise DataFormatError(f"the folder {path} has no files of rows ({', '.join(_SUFFIXES)})")
    for file in files:
        if len(files) > 1 and file.name.split(".")[0].lower() in _HELD_OUT:
            logger.warning("%s looks like held-out data, and is read like the rest of its folder", file)
    return JoinedRows(path, [_checked(_open_file(str(file))) for file in files])


def _open_file(path: str) -> Rows:
    suffix = _suffix(path)
    if not suffix:
        raise DataFormatError(
            f"{path} is not named like a file of rows; the name must end in one of {', '.join(_SUFFIXES)}, with .gz "
            "and the like after it if it is compressed"
        )
    if suffix in _PARQUET:
        return ParquetRows(path)
    with open_seekable(path) as file:
        if not has_data(file):
            raise DataValidationError(f"{path} is empty")
        is_array = suffix in _JSON and _is_array(file)
    if suffix in _TABLES:
        return CsvRows(path)
    return JsonArrayRows(path) if is_array else JsonlRows(path)


def _is_array(file: BinaryIO) -> bool:
    """Whether the file is one JSON array; a line that is an array has its end on the same line."""
    head = file.read(1 << 16).removeprefix(BYTE_ORDER_MARK).lstrip()
    first_line, _, rest = head.partition(b"\n")
    return head.startswith(b"[") and not (first_line.rstrip().endswith(b"]") and rest.strip())


def _checked(rows: Rows) -> Rows:
    if not len(rows):
        raise DataValidationError(f"{rows.name} has no rows")
    return rows


def _suffix(name: str) -> str:
    """The ending that tells the format, that of a compression taken off; "" for a name that tells none."""
    path = Path(name.lower())
    if path.suffix in COMPRESSED:
        path = path.with_suffix("")
    return path.suffix if path.suffix in _SUFFIXES else ""


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
