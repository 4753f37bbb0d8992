"""Batches of examples that are read and rendered when they are asked for."""

import logging
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import tinker

from tinker_cookbook.exceptions import DataValidationError
from tinker_cookbook.supervised.rendering import Cuts, ExampleRenderer, render_or_explain
from tinker_cookbook.supervised.rows import Example, OnBadRow
from tinker_cookbook.supervised.types import SupervisedDataset

logger = logging.getLogger(__name__)


class ExampleSource(Protocol):
    """Examples by number, each with a place that people can find it by."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Example: ...
    def where(self, index: int, /) -> str: ...


class ExampleDataset(SupervisedDataset):
    """`order`: the examples it has, by their numbers in `source`, as they come before any `set_epoch`.

    An epoch's order is drawn from its seed and this order alone. What fills no whole batch is left out of an epoch.
    """

    def __init__(
        self,
        source: ExampleSource,
        order: Sequence[int] | np.ndarray,
        batch_size: int,
        render: ExampleRenderer,
        *,
        on_bad_row: OnBadRow = "stop",
    ):
        self._source = source
        self._first_order = np.asarray(order, dtype=np.int64)
        self._order = self._first_order
        self._batch_size = batch_size
        self._render = render
        self._on_bad_row = on_bad_row
        self._refused: set[int] = set()

    @property
    def cuts(self) -> Cuts:
        """What `max_length` took away so far."""
        return self._render.cuts

    @property
    def refused(self) -> int:
        """Rows left out because the renderer would not write them (on_bad_row=skip)."""
        return len(self._refused)

    def __len__(self) -> int:
        return len(self._first_order) // self._batch_size

    def set_epoch(self, seed: int = 0) -> None:
        self._render.cuts.report(self._render.max_length)
        self._order = self._first_order[np.random.default_rng(seed).permutation(len(self._first_order))]

    def metrics(self) -> dict[str, float]:
        return self.cuts.metrics() | {"data/refused_rows": float(self.refused)}

    def get_batch(self, index: int) -> list[tinker.Datum]:
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        numbers = self._order[index * self._batch_size : (index + 1) * self._batch_size]
        batch = [datum for number in numbers for datum in self._datums(int(number))]
        if not batch:
            raise DataValidationError(f"the renderer refuses every example of batch {index}; see the log")
        return batch

    def _datums(self, number: int) -> list[tinker.Datum]:
        example = self._source[number]
        try:
            return render_or_explain(self._render, example, self._source.where(number))
        except DataValidationError as error:
            if self._on_bad_row == "stop":
                raise
            if number not in self._refused:
                logger.warning("skipped %s", error)
                self._refused.add(number)
            return []
