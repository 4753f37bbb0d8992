"""Where the files of a run live: a folder of this machine or an object store."""

import re
from typing import Any

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.stores._base import AsyncStorage, Storage, StorageStat, storage_join
from tinker_cookbook.stores._fsspec import FsspecStorage, fsspec_storage
from tinker_cookbook.stores._local import LocalStorage

__all__ = [
    "AsyncStorage",
    "FsspecStorage",
    "LocalStorage",
    "Storage",
    "StorageStat",
    "storage_for_reading",
    "storage_from_uri",
    "storage_join",
]

_LOST_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/([^/].*)")


def storage_from_uri(uri: str, **kwargs: Any) -> Storage:
    """`kwargs` go to the filesystem of fsspec (keys, endpoints), or to LocalStorage for a path or file://."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        _check_not_mangled(uri)
        return LocalStorage(uri, **kwargs)
    if scheme == "file":
        return LocalStorage(rest, **kwargs)
    return fsspec_storage(uri, **kwargs)


def storage_for_reading(uri: str) -> Storage:
    """As `storage_from_uri`, but looking for a folder does not create it."""
    local = "://" not in uri or uri.startswith("file://")
    return storage_from_uri(uri, mkdir=False) if local else storage_from_uri(uri)


def _check_not_mangled(path: str) -> None:
    """`s3://b/x` that went through pathlib is `s3:/b/x`: a local folder, if nobody objects."""
    if lost := _LOST_SLASH.fullmatch(path):
        raise ConfigurationError(
            f"{path!r} looks like a URI that lost a slash on its way through pathlib or normpath; "
            f"pass '{lost[1]}://{lost[2]}'"
        )
