"""Functions too small for a file of their own."""

import importlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

T = TypeVar("T")


@contextmanager
def timed(key: str, metrics: dict[str, Any]) -> Iterator[None]:
    """Seconds that the block took, as `metrics["time/<key>"]`, also when it raises."""
    start = time.perf_counter()
    try:
        yield
    finally:
        metrics[f"time/{key}"] = time.perf_counter() - start


safezip = cast(type[zip], lambda *args, **kwargs: zip(*args, **kwargs, strict=True))


def dict_mean(list_of_dicts: list[dict[str, float | int]]) -> dict[str, float]:
    """Per key, the mean over the dicts that have it. For a rate, write the zeros too."""
    values: dict[str, list[float | int]] = {}
    for each in list_of_dicts:
        for key, value in each.items():
            values.setdefault(key, []).append(value)
    return {key: float(sum(found) / len(found)) for key, found in values.items()}


def all_same(xs: list[Any]) -> bool:
    """Whether all are equal; of none, they are."""
    return all(x == xs[0] for x in xs)


def lookup_func(path_to_func: str, default_module: str | None = None) -> Callable[..., Any]:
    """The function named by "module:function", or by "function" in `default_module`."""
    module_name, colon, name = path_to_func.rpartition(":")
    if not colon:
        if default_module is None:
            raise ValueError(f"{path_to_func!r} names no module; write it as 'module:function'")
        module_name = default_module
    function: Any = importlib.import_module(module_name)
    for part in name.split("."):
        function = getattr(function, part)
    return function


def split_list(lst: Sequence[T], num_splits: int) -> list[list[T]]:
    """`num_splits` runs of neighbours, whose lengths differ by one at most."""
    if not 0 < num_splits <= len(lst):
        raise ValueError(f"cannot split {len(lst)} items into {num_splits} parts; use 1 to {len(lst)}")
    edges = [i * len(lst) // num_splits for i in range(num_splits + 1)]
    return [list(lst[start:end]) for start, end in itertools.pairwise(edges)]


def concat_lists(list_of_lists: list[list[Any]]) -> list[Any]:
    """One list of all."""
    return [item for each in list_of_lists for item in each]


def not_none(x: T | None) -> T:
    """The value, for type checkers: asserts that it is not None."""
    assert x is not None
    return x


def local_folder(uri: str | Path) -> Path | None:
    """The folder that a log path names on this machine; None for one in a bucket (s3://... and the like)."""
    scheme, separator, rest = str(uri).partition("://")
    if not separator:
        return Path(uri).expanduser()
    return Path(rest) if scheme == "file" else None


def iteration_dir(log_path: str | Path | None, step: int) -> Path | None:
    """Where pages about a step go on this machine; None without a log path, or with one in a bucket.

    In a bucket, write them through `TrainingRunStore`, whose names are the same.
    """
    folder = None if log_path is None else local_folder(log_path)
    return None if folder is None else folder / f"iteration_{step:06d}"
