"""Data of comparisons, and how a judge is trained on it."""

import functools
import logging
import random
from collections.abc import Sequence
from typing import Any, Protocol, get_args

import chz
import numpy as np
import tinker

from tinker_cookbook.exceptions import DataFormatError, DataValidationError
from tinker_cookbook.preference.types import (
    Comparison,
    ComparisonRenderer,
    ComparisonRendererFromChatRenderer,
    Label,
    LabeledComparison,
)
from tinker_cookbook.supervised.common import datum_from_model_input_weights
from tinker_cookbook.supervised.rows import open_rows
from tinker_cookbook.supervised.types import ChatDatasetBuilder, SupervisedDataset

logger = logging.getLogger(__name__)


class Table(Protocol):
    """Rows by number: a `datasets.Dataset`, the `Rows` of a file, or a list."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


@chz.chz
class ComparisonDatasetBuilder:
    """Where comparisons come from."""

    swap: bool = chz.field(default=False, doc="Take each comparison both ways round")

    def get_train_and_test_datasets(self) -> tuple[Table, Table | None]:
        raise NotImplementedError

    def example_to_labeled_comparison(self, example: dict) -> LabeledComparison | None:
        """None leaves the row out."""
        raise NotImplementedError

    def get_labeled_comparisons(self) -> tuple[list[LabeledComparison], list[LabeledComparison] | None]:
        train, test = self.get_train_and_test_datasets()
        return self._labeled(train), None if test is None else self._labeled(test)

    def _labeled(self, rows: Table) -> list[LabeledComparison]:
        found = (self.example_to_labeled_comparison(rows[number]) for number in range(len(rows)))
        labeled = [comparison for comparison in found if comparison is not None]
        if len(labeled) < len(rows):
            logger.warning(
                "%d of %d rows are no comparisons and are left out", len(rows) - len(labeled), len(rows)
            )
        if not self.swap:
            return labeled
        return [turned for comparison in labeled for turned in (comparison, comparison.swap())]


@chz.chz
class ComparisonBuilderFromJsonl(ComparisonDatasetBuilder):
    """Rows `{"comparison": {"prompt_conversation", "completion_A", "completion_B"}, "label": "A" | "B" | "Tie"}`.

    Those without these keys are left out.
    """

    train_path: str = chz.field(doc="A file of such rows, one JSON object per line")
    test_path: str | None = chz.field(default=None, doc="The same, held out")

    def get_train_and_test_datasets(self) -> tuple[Table, Table | None]:
        return open_rows(self.train_path), None if self.test_path is None else open_rows(self.test_path)

    def example_to_labeled_comparison(self, example: dict) -> LabeledComparison | None:
        if not {"comparison", "label"} <= example.keys():
            return None
        if example["label"] not in get_args(Label):
            raise DataFormatError(
                f"a label must be one of {', '.join(get_args(Label))}, not {example['label']!r}"
            )
        comparison = example["comparison"]
        keys = ("prompt_conversation", "completion_A", "completion_B")
        if any(key not in comparison for key in keys):
            return None
        return LabeledComparison(Comparison(*(comparison[key] for key in keys)), example["label"])


@chz.chz
class ChatDatasetBuilderFromComparisons(ChatDatasetBuilder):
    """Trains a judge: it is shown two answers and learns the label, a tie too. What is held out is one batch."""

    comparison_builder: ComparisonDatasetBuilder
    swap: bool = chz.field(default=False, doc="Learn each comparison both ways round; else one way, by lot")

    @functools.cached_property
    def comparison_renderer(self) -> ComparisonRenderer:
        return ComparisonRendererFromChatRenderer(self.renderer)

    def __call__(self) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        train, test = self.comparison_builder.get_train_and_test_datasets()
        dataset = self._dataset(train, self.common_config.batch_size)
        return dataset, None if test is None or not len(test) else self._dataset(test, len(test))

    def _dataset(self, rows: Table, batch_size: int) -> "_ComparisonDataset":
        both_ways = self.swap or self.comparison_builder.swap
        return _ComparisonDataset(
            rows,
            self.comparison_builder,
            self.comparison_renderer,
            batch_size,
            self.common_config.max_length,
            both_ways,
        )


class _ComparisonDataset(SupervisedDataset):
    """A batch depends on the epoch and its index alone, and so does which way round a comparison is shown."""

    def __init__(
        self,
        rows: Table,
        builder: ComparisonDatasetBuilder,
        renderer: ComparisonRenderer,
        batch_size: int,
        max_length: int | None,
        both_ways: bool,
    ):
        self._rows = rows
        self._builder = builder
        self._renderer = renderer
        self._batch_size = batch_size
        self._max_length = max_length
        self._both_ways = both_ways
        self._epoch = 0
        self._order: Sequence[int] | np.ndarray = range(len(rows))

    def set_epoch(self, seed: int = 0) -> None:
        self._epoch = seed
        self._order = np.random.default_rng(seed).permutation(len(self._rows))

    def __len__(self) -> int:
        return len(self._rows) // self._batch_size

    def get_batch(self, index: int) -> list[tinker.Datum]:
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        numbers = self._order[index * self._batch_size : (index + 1) * self._batch_size]
        batch = [datum for number in numbers for datum in self._datums(int(number))]
        if not batch:
            raise DataValidationError(
                f"no row of batch {index} can be learned: none is a comparison that fits max_length={self._max_length}"
            )
        return batch

    def _datums(self, number: int) -> list[tinker.Datum]:
        labeled = self._builder.example_to_labeled_comparison(self._rows[number])
        if labeled is None:
            return []
        if self._both_ways:
            return self._datum(number, labeled) + self._datum(number, labeled.swap())
        is_swapped = random.Random(f"{self._epoch}/{number}").random() < 0.5
        return self._datum(number, labeled.swap() if is_swapped else labeled)

    def _datum(self, number: int, labeled: LabeledComparison) -> list[tinker.Datum]:
        """The label stands at the end, so that of a comparison that is cut there is nothing left to learn."""
        model_input, weights = self._renderer.to_model_input_weights(labeled)
        if self._max_length is not None and model_input.length > self._max_length:
            logger.warning(
                "row %d is left out: %d tokens, and max_length=%d",
                number,
                model_input.length,
                self._max_length,
            )
            return []
        return [datum_from_model_input_weights(model_input, weights)]
