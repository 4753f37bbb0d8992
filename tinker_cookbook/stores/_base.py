"""What a place for files must offer, and what every such place shares."""

import asyncio
import functools
import posixpath
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, runtime_checkable

from tinker_cookbook.exceptions import ConfigurationError

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


@dataclass(frozen=True)
class StorageStat:
    """Size in bytes, and when it was last changed, in seconds since 1970."""

    size: int
    mtime: float


@runtime_checkable
class Storage(Protocol):
    """Files under one root, by relative paths with forward slashes.

    `read` of a missing file raises FileNotFoundError; `stat` gives None and `list_dir` an empty list. What `append`
    took may be held back until `flush`, but is seen by reads through the same object at once.
    """

    def url(self, path: str = "") -> str: ...
    def read(self, path: str) -> bytes: ...
    def write(self, path: str, data: bytes) -> None: ...
    def append(self, path: str, data: bytes) -> None: ...
    def exists(self, path: str) -> bool: ...
    def stat(self, path: str) -> StorageStat | None: ...
    def read_range(self, path: str, offset: int, length: int | None = None) -> bytes: ...
    def list_dir(self, prefix: str) -> list[str]: ...
    def remove(self, path: str) -> None: ...
    def remove_dir(self, path: str) -> None: ...
    def flush(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...


@runtime_checkable
class AsyncStorage(Protocol):
    """A `Storage` whose methods can be awaited."""

    async def aread(self, path: str) -> bytes: ...
    async def awrite(self, path: str, data: bytes) -> None: ...
    async def aappend(self, path: str, data: bytes) -> None: ...
    async def aexists(self, path: str) -> bool: ...
    async def astat(self, path: str) -> StorageStat | None: ...
    async def aread_range(self, path: str, offset: int, length: int | None = None) -> bytes: ...
    async def alist_dir(self, prefix: str) -> list[str]: ...
    async def aremove(self, path: str) -> None: ...
    async def aremove_dir(self, path: str) -> None: ...


def in_thread(
    method: Callable[Concatenate[S, P], R],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """The awaitable twin of a method: `aread = in_thread(read)`. A subclass that overrides `read` changes both."""

    name = method.__name__

    @functools.wraps(method, updated=())  # or the twin of an abstract method would be abstract
    async def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(getattr(self, name), *args, **kwargs)

    return run


class BaseStorage(ABC):
    """The awaitable twins and the context manager, for storages that do their work in blocking calls."""

    @abstractmethod
    def url(self, path: str = "") -> str: ...
    @abstractmethod
    def read(self, path: str) -> bytes: ...
    @abstractmethod
    def write(self, path: str, data: bytes) -> None: ...
    @abstractmethod
    def append(self, path: str, data: bytes) -> None: ...
    @abstractmethod
    def stat(self, path: str) -> StorageStat | None: ...
    @abstractmethod
    def exists(self, path: str) -> bool: ...
    @abstractmethod
    def read_range(self, path: str, offset: int, length: int | None = None) -> bytes: ...
    @abstractmethod
    def list_dir(self, prefix: str) -> list[str]: ...
    @abstractmethod
    def remove(self, path: str) -> None: ...
    @abstractmethod
    def remove_dir(self, path: str) -> None: ...
    @abstractmethod
    def flush(self) -> None: ...

    aread = in_thread(read)
    awrite = in_thread(write)
    aappend = in_thread(append)
    aexists = in_thread(exists)
    astat = in_thread(stat)
    aread_range = in_thread(read_range)
    alist_dir = in_thread(list_dir)
    aremove = in_thread(remove)
    aremove_dir = in_thread(remove_dir)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.flush()


def storage_join(*parts: str) -> str:
    """One path from several, without empty, doubled or leading slashes; "" if nothing is left. Keeps `s3://`."""
    scheme, separator, first = parts[0].partition("://") if parts else ("", "", "")
    if not separator:
        scheme, first = "", "".join(parts[:1])
    joined = "/".join(stripped for part in (first, *parts[1:]) if (stripped := part.strip("/")))
    path = posixpath.normpath(joined) if joined else "."
    return scheme + separator + ("" if path == "." else path)


def check_inside(path: str, root: str) -> str:
    """The path, normalised, unless it leads out of the root."""
    inside = posixpath.normpath(path) if path else "."
    if inside.startswith("/") or inside.split("/")[0] == "..":
        raise ConfigurationError(f"{path!r} escapes {root}; give a path relative to it, without '..'")
    return "" if inside == "." else inside
