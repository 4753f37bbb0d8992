"""Training on a file, a folder or a Hugging Face data set, as the user has it."""

import functools
import logging
from typing import NamedTuple

import chz
import numpy as np

from tinker_cookbook.exceptions import ConfigurationError, DataValidationError
from tinker_cookbook.renderers import TrainOnWhat
from tinker_cookbook.supervised.example_dataset import ExampleDataset, ExampleSource
from tinker_cookbook.supervised.rendering import ExampleRenderer
from tinker_cookbook.supervised.rows import Example, Examples, OnBadRow, open_rows
from tinker_cookbook.supervised.types import ChatDatasetBuilder

logger = logging.getLogger(__name__)


class Split(NamedTuple):
    """Which examples are trained on and which are held out, by number."""

    train: ExampleSource
    train_order: np.ndarray
    test: ExampleSource | None
    test_order: np.ndarray

    def held_out(self, count: int) -> list[Example]:
        """The first of them, to look at."""
        return [] if self.test is None else [self.test[int(number)] for number in self.test_order[:count]]


@chz.chz
class ExampleDatasetBuilder(ChatDatasetBuilder):
    """What builders over checked examples share: a subclass says where they come from."""

    test_size: int = chz.field(default=0, doc="Examples held out to be evaluated on")
    shuffle_seed: int = chz.field(default=0, doc="Decides which examples are held out, and the first order")
    on_bad_row: OnBadRow = chz.field(
        default="stop", doc="stop, or skip: what happens at a row that does not fit"
    )

    @chz.validate
    def _check_sizes(self) -> None:
        if self.test_size < 0:
            raise ConfigurationError(f"test_size={self.test_size} is negative; 0 holds nothing out")
        for name in ("batch_size", "max_length"):
            value = getattr(self.common_config, name)
            least = 1 if name == "batch_size" else 2
            if value is not None and value < least:
                raise ConfigurationError(f"{name}={value} must be at least {least}")

    @property
    def train_on_what(self) -> TrainOnWhat:
        return TrainOnWhat(self.common_config.train_on_what or TrainOnWhat.ALL_ASSISTANT_MESSAGES)

    @functools.cached_property
    def split(self) -> Split:
        """Reads and checks all rows, once."""
        raise NotImplementedError

    def __call__(self) -> tuple[ExampleDataset, ExampleDataset | None]:
        split = self.split
        batch_size = self.common_config.batch_size
        if len(split.train_order) < batch_size:
            raise DataValidationError(
                f"there are {len(split.train_order)} examples to train on, fewer than batch_size={batch_size}: set "
                f"batch_size to {max(1, len(split.train_order))} or less"
            )
        logger.info("%d examples to train on, %d held out", len(split.train_order), len(split.test_order))
        if rest := len(split.train_order) % batch_size:
            logger.info("%d examples, others in each epoch, are left over by batches of %d", rest, batch_size)
        train = self._dataset(split.train, split.train_order, batch_size)
        if split.test is None:
            return train, None
        return train, self._dataset(split.test, split.test_order, len(split.test_order))

    def _dataset(self, source: ExampleSource, order: np.ndarray, batch_size: int) -> ExampleDataset:
        render = ExampleRenderer(self.renderer, self.common_config.max_length, self.train_on_what)
        return ExampleDataset(source, order, batch_size, render, on_bad_row=self.on_bad_row)

    def _hold_out(self, source: ExampleSource, order: np.ndarray) -> Split:
        """The first `test_size` of an order that has been shuffled, if there are more than that."""
        held_out = self.test_size if len(order) > self.test_size else 0
        if held_out < self.test_size:
            logger.warning(
                "nothing is held out: there are %d examples, no more than test_size=%d",
                len(order),
                self.test_size,
            )
        test = source if held_out else None
        return Split(source, order[held_out:], test, order[:held_out])


@chz.chz
class FromConversationFileBuilder(ExampleDatasetBuilder):
    """JSONL, JSON, CSV or Parquet; conversations, prompts with completions, or text. See `supervised.rows`."""

    file_path: str = chz.field(doc="A file, a folder of files, or the name of a Hugging Face data set")
    test_path: str | None = chz.field(
        default=None, doc="Where the held-out examples are, instead of test_size"
    )
    columns: tuple[str, ...] = chz.field(
        default=(), doc="Columns to read: a,b are prompt and completion; a is a conversation or text"
    )
    subset: str | None = chz.field(default=None, doc="Of a Hugging Face data set: its configuration")
    split_name: str = chz.field(default="train", doc="Of a Hugging Face data set: its split")
    test_split: str | None = chz.field(
        default=None, doc="Of a Hugging Face data set: the split that is held out, instead of test_size"
    )

    @chz.validate
    def _check_test(self) -> None:
        if self.test_size and (self.test_path or self.test_split):
            raise ConfigurationError("test_path or test_split, and test_size: give one way to hold out")

    @functools.cached_property
    def split(self) -> Split:
        examples = self._examples(self.file_path, self.split_name)
        order = np.random.default_rng(self.shuffle_seed).permutation(len(examples))
        if not (self.test_path or self.test_split):
            return self._hold_out(examples, order)
        test = self._examples(self.test_path or self.file_path, self.test_split or self.split_name)
        return Split(examples, order, test, np.arange(len(test)))

    def _examples(self, path: str, split: str) -> Examples:
        rows = open_rows(path, subset=self.subset, split=split)
        return Examples(
            rows, train_on_what=self.train_on_what, columns=self.columns, on_bad_row=self.on_bad_row
        )
