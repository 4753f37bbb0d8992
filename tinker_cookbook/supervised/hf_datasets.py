"""Batches from objects of the `datasets` package, with a function of the user's own from row to datum."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import tinker

from tinker_cookbook.exceptions import ConfigurationError, DataValidationError
from tinker_cookbook.supervised.types import SupervisedDataset

if TYPE_CHECKING:
    import datasets  # pyright: ignore[reportMissingImports]

MapFn = Callable[[dict], tinker.Datum]
FlatMapFn = Callable[[dict], list[tinker.Datum]]


class SupervisedDatasetFromHFDataset(SupervisedDataset):
    """`map_fn` makes one datum of a row, `flatmap_fn` any number; give one of them."""

    def __init__(
        self,
        hf_dataset: "datasets.Dataset",
        batch_size: int,
        map_fn: MapFn | None = None,
        flatmap_fn: FlatMapFn | None = None,
    ):
        self._original = hf_dataset
        self._shuffled = hf_dataset
        self._batch_size = batch_size
        self._datums = _one_of(map_fn, flatmap_fn)

    def get_batch(self, index: int) -> list[tinker.Datum]:
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        start = index * self._batch_size
        rows: Any = self._shuffled.select(range(start, start + self._batch_size))
        return [datum for row in rows for datum in self._datums(row)]

    def set_epoch(self, seed: int = 0) -> None:
        self._shuffled = self._original.shuffle(seed=seed)

    def __len__(self) -> int:
        return len(self._original) // self._batch_size


class StreamingSupervisedDatasetFromHFDataset(SupervisedDataset):
    """For data sets that are too large to have: read once from the front, shuffled within a buffer.

    `length` is the number of rows of an epoch, which a stream cannot tell. Batches must be asked for in order; those
    that are left out, as after a resume, are read and thrown away.
    """

    def __init__(
        self,
        hf_dataset: "datasets.IterableDataset",
        batch_size: int,
        length: int,
        map_fn: MapFn | None = None,
        flatmap_fn: FlatMapFn | None = None,
        buffer_size: int = 10_000,
    ):
        self._batches: Any = hf_dataset.shuffle(seed=0, buffer_size=buffer_size).batch(
            batch_size=batch_size, drop_last_batch=True
        )
        self._batch_size = batch_size
        self._length = length
        self._datums = _one_of(map_fn, flatmap_fn)
        self.set_epoch(0)

    def set_epoch(self, seed: int = 0) -> None:
        self._batches.set_epoch(seed)
        self._next = 0
        self._stream: Iterator[dict[str, list]] = iter(())

    def get_batch(self, index: int) -> list[tinker.Datum]:
        if index < self._next:
            raise DataValidationError(
                f"batch {index} has been read and a stream cannot go back from {self._next}; call set_epoch to begin "
                "again"
            )
        columns: dict[str, list] = {}
        while self._next <= index:
            columns = self._read()
            self._next += 1
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        return [datum for row in rows for datum in self._datums(row)]

    def _read(self) -> dict[str, list]:
        if self._next == 0:
            self._stream = iter(self._batches)
        columns = next(self._stream, None)
        if columns is None:
            raise DataValidationError(
                f"the stream ended after {self._next} batches of {self._batch_size}; length={self._length} promised "
                f"{len(self)}"
            )
        return columns

    def __len__(self) -> int:
        return self._length // self._batch_size


def _one_of(map_fn: MapFn | None, flatmap_fn: FlatMapFn | None) -> FlatMapFn:
    if (map_fn is None) == (flatmap_fn is None):
        raise ConfigurationError("give either map_fn or flatmap_fn")
    if flatmap_fn is not None:
        return flatmap_fn
    assert map_fn is not None
    return _Single(map_fn)


class _Single:
    """A class and not a closure, so that the dataset can be pickled."""

    def __init__(self, map_fn: MapFn):
        self._map_fn = map_fn

    def __call__(self, row: dict) -> list[tinker.Datum]:
        return [self._map_fn(row)]
