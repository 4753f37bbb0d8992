"""Any file as one that can be read at any place."""

import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, BinaryIO, cast

from tinker_cookbook.exceptions import DataFormatError
from tinker_cookbook.utils.misc_utils import local_folder

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


def open_seekable(path: str) -> BinaryIO:
    """The file itself, or, if it is compressed or in a bucket, a temporary copy that goes when it is closed."""
    local = local_folder(path)
    if local is not None and local.suffix.lower() not in COMPRESSED:
        try:
            return local.open("rb")
        except OSError as error:
            raise _cannot_read(path, error) from error
    return _unpacked(path)


def has_data(file: BinaryIO) -> bool:
    """Whether anything but white space and a byte-order mark is in it; leaves it at its start."""
    file.seek(0)
    mark = file.read(len(BYTE_ORDER_MARK))
    if mark != BYTE_ORDER_MARK:
        file.seek(0)
    blocks = iter(lambda: file.read(1 << 16), b"")
    found = any(block.strip() for block in blocks)
    file.seek(0)
    return found


def _unpacked(path: str) -> BinaryIO:
    import fsspec

    copy = cast(BinaryIO, tempfile.TemporaryFile(prefix="rows-"))  # noqa: SIM115  # its owner closes it
    try:
        opened: Any = fsspec.open(_uri(path), "rb", compression=_compression(path))
        with opened as packed:
            shutil.copyfileobj(packed, copy, 1 << 20)
        copy.flush()
    except (OSError, EOFError, ValueError, ImportError) as error:
        copy.close()
        raise _cannot_read(path, error) from error
    copy.seek(0)
    return copy


def _uri(path: str) -> str:
    local = local_folder(path)
    return path if local is None else str(local.absolute())


def _compression(path: str) -> str | None:
    return {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}.get(Path(path).suffix.lower())


def _cannot_read(path: str, error: Exception) -> DataFormatError:
    if isinstance(error, FileNotFoundError):
        return DataFormatError(f"there is no file {path}")
    if isinstance(error, OSError) and error.errno in errno.errorcode:
        return DataFormatError(f"{path} cannot be read: {os.strerror(cast(int, error.errno))}")
    return DataFormatError(f"{path} cannot be read: {error}")
