"""Several data sets mixed into one."""

import functools
import itertools
import logging
import math
from collections.abc import Iterator, Sequence
from typing import Literal

import chz
import numpy as np

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.supervised.conversation_files import ExampleDatasetBuilder, Split
from tinker_cookbook.supervised.example_dataset import ExampleSource
from tinker_cookbook.supervised.rows import Example, Examples, open_rows

logger = logging.getLogger(__name__)

StoppingStrategy = Literal["first_exhausted", "all_exhausted", "all_exhausted_without_replacement"]


@chz.chz
class HFDatasetSource:
    """One of the data sets, and its share."""

    path: str = chz.field(doc="Name on the hub, or a file or folder")
    name: str | None = chz.field(default=None, doc="Configuration of the data set, if it has several")
    split: str = chz.field(default="train", doc="Split of the data set")
    weight: float | None = chz.field(default=None, doc="Share of the mixture; None for all: by size")
    message_field: str = chz.field(default="messages", doc="Column with the conversation")


@chz.chz
class InterleavedChatDatasetBuilder(ExampleDatasetBuilder):
    """Draws from its sources by weight until they are used up, as `stopping_strategy` says.

    first_exhausted: until one is at its end. all_exhausted: until all were; those at their end begin again.
    all_exhausted_without_replacement: until all are, and every row comes once.
    """

    sources: list[HFDatasetSource] = chz.field(doc="What is mixed")
    stopping_strategy: StoppingStrategy = chz.field(default="all_exhausted", doc="When the mixture ends")

    @chz.validate
    def _check_sources(self) -> None:
        if not self.sources:
            raise ConfigurationError("sources is empty; name at least one")
        weights = [source.weight for source in self.sources]
        given = [weight for weight in weights if weight is not None]
        if given and len(given) < len(weights):
            raise ConfigurationError("give every source a weight, or none of them: then they weigh by size")
        if given and not (sum(given) > 0 and all(math.isfinite(w) and w >= 0 for w in given)):
            raise ConfigurationError(f"weights must not be negative and their sum must be above 0: {given}")

    @functools.cached_property
    def split(self) -> Split:
        parts = [self._examples(source) for source in self.sources]
        sizes = [len(part) for part in parts]
        weights = [source.weight for source in self.sources]
        shares = [
            float(size if weight is None else weight) for size, weight in zip(sizes, weights, strict=True)
        ]
        rng = np.random.default_rng(self.shuffle_seed)
        order = interleave(sizes, shares, self.stopping_strategy, rng)
        logger.info("mixed %d examples of %d sources", len(order), len(parts))
        return self._hold_out(_Joined(parts), order)

    def _hold_out(self, source: ExampleSource, order: np.ndarray) -> Split:
        """An example that comes more than once is held out wholly or not at all."""
        split = super()._hold_out(source, order)
        if split.test is None:
            return split
        held_out = np.unique(split.test_order)
        kept = split.train_order[~np.isin(split.train_order, held_out)]
        return split._replace(train_order=kept, test_order=_first_of_each(split.test_order))

    def _examples(self, source: HFDatasetSource) -> Examples:
        rows = open_rows(source.path, subset=source.name, split=source.split)
        return Examples(
            rows,
            train_on_what=self.train_on_what,
            columns=(source.message_field,),
            on_bad_row=self.on_bad_row,
        )


class _Joined:
    """The examples of several sources, numbered on."""

    def __init__(self, parts: Sequence[Examples]):
        self._parts = parts
        self._starts = [0, *itertools.accumulate(len(part) for part in parts)]

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> Example:
        part, at = self._locate(index)
        return part[at]

    def where(self, index: int) -> str:
        part, at = self._locate(index)
        return part.where(at)

    def _locate(self, index: int) -> tuple[Examples, int]:
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self._parts[number], index - self._starts[number]


def interleave(
    sizes: Sequence[int], weights: Sequence[float], strategy: StoppingStrategy, rng: np.random.Generator
) -> np.ndarray:
    """Numbers of examples, those of the second source following those of the first; each source is shuffled.

    A source of weight 0 is left out, and nobody waits for it to be used up.
    """
    starts = np.cumsum([0, *sizes[:-1]])
    passes = [_Passes(start, size, rng) for start, size in zip(starts, sizes, strict=True)]
    shares = np.asarray(weights, dtype=np.float64)
    open_sources = shares > 0
    order: list[int] = []
    choices = _choices(shares, rng)
    while True:
        choice = next(choices)
        order.append(passes[choice].next())
        if not passes[choice].is_exhausted:
            continue
        open_sources[choice] = False
        if strategy == "first_exhausted" or not open_sources.any():
            return np.asarray(order, dtype=np.int64)
        if strategy == "all_exhausted_without_replacement":
            choices = _choices(np.where(open_sources, shares, 0.0), rng)


def _choices(shares: np.ndarray, rng: np.random.Generator) -> Iterator[int]:
    """Sources without end; many are drawn at a time, since a draw alone is slow."""
    while True:
        yield from rng.choice(len(shares), size=1024, p=shares / shares.sum()).tolist()


class _Passes:
    """A source, gone through again and again, each time in another order."""

    def __init__(self, start: int, size: int, rng: np.random.Generator):
        self._start, self._size, self._rng = start, size, rng
        self._order = rng.permutation(size)
        self._taken = 0

    @property
    def is_exhausted(self) -> bool:
        """Whether all of it has been taken at least once."""
        return self._taken >= self._size

    def next(self) -> int:
        at = self._taken % self._size
        if at == 0 and self._taken:
            self._order = self._rng.permutation(self._size)
        self._taken += 1
        return int(self._start + self._order[at])


def _first_of_each(order: np.ndarray) -> np.ndarray:
    _, first = np.unique(order, return_index=True)
    return order[np.sort(first)]
