"""Several data sets mixed into one, by weight."""

import asyncio
import logging
import random
from collections.abc import Iterator, Sequence

import chz

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, RLDatasetBuilder

logger = logging.getLogger(__name__)


class _Groups:
    """The groups of a data set, numbered through its batches. All but the last batch must be as long as the first."""

    def __init__(self, dataset: RLDataset, number: int):
        if not len(dataset):
            raise ConfigurationError(f"source {number} has 0 batches")
        self._dataset = dataset
        self._batch_size = len(dataset.get_batch(0))
        if not self._batch_size:
            raise ConfigurationError(f"batch 0 of source {number} has 0 groups")
        full_batches = len(dataset) - 1
        self.count = full_batches * self._batch_size + len(dataset.get_batch(full_batches))

    def __getitem__(self, group: int) -> EnvGroupBuilder:
        """IndexError if a batch is shorter than the first one promised."""
        batch, place = divmod(group, self._batch_size)
        return self._dataset.get_batch(batch)[place]


class _InterleavedRLDataset(RLDataset):
    """Which groups a batch has is drawn once, from the seed; so a batch is the same whenever it is asked for."""

    def __init__(
        self,
        sources: Sequence[RLDataset],
        weights: Sequence[float],
        groups_per_batch: int,
        total_batches: int | None = None,
        seed: int = 0,
    ):
        _check(len(sources), weights, groups_per_batch, total_batches)
        self._sources = [_Groups(source, number) for number, source in enumerate(sources)]
        self._groups_per_batch = groups_per_batch
        shares = [weight / sum(weights) for weight in weights]
        if total_batches is None:
            total_batches = self._batches_until_one_is_used_up(shares)
        self._schedule = self._drawn(total_batches * groups_per_batch, shares, seed)

    def _batches_until_one_is_used_up(self, shares: Sequence[float]) -> int:
        return max(
            1,
            min(
                int(source.count / (share * self._groups_per_batch))
                for source, share in zip(self._sources, shares, strict=True)
            ),
        )

    def _drawn(self, count: int, shares: Sequence[float], seed: int) -> list[tuple[int, int]]:
        """(source, group) for every place. A longer schedule begins with the shorter one."""
        passes = [
            _passes(source.count, random.Random(f"{seed}/{number}"))
            for number, source in enumerate(self._sources)
        ]
        choices = random.Random(seed).choices(range(len(passes)), weights=shares, k=count)
        return [(choice, next(passes[choice])) for choice in choices]

    def get_batch(self, index: int) -> list[EnvGroupBuilder]:
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        start = index * self._groups_per_batch
        places = self._schedule[start : start + self._groups_per_batch]
        return [self._sources[source][group] for source, group in places]

    def __len__(self) -> int:
        return len(self._schedule) // self._groups_per_batch


def _passes(count: int, rng: random.Random) -> Iterator[int]:
    """All numbers in a random order, then all in another, without end."""
    while True:
        yield from rng.sample(range(count), count)


def _check(
    sources: int, weights: Sequence[float], groups_per_batch: int, total_batches: int | None = None
) -> None:
    if sources != len(weights):
        raise ConfigurationError(
            f"sources and weights must have the same length, and have {sources} and {len(weights)}"
        )
    if not sources:
        raise ConfigurationError("At least one source is needed")
    if not all(weight > 0 for weight in weights):
        raise ConfigurationError(f"weights must be positive; leave out a source of weight 0: {list(weights)}")
    if groups_per_batch < 1:
        raise ConfigurationError(f"groups_per_batch={groups_per_batch} must be at least 1")
    if total_batches is not None and total_batches < 1:
        raise ConfigurationError(f"total_batches={total_batches} must be at least 1")


@chz.chz
class InterleavedRLDatasetBuilder(RLDatasetBuilder):
    """Every group of a source comes once before any comes again. What the sources would be tested on is left out."""

    sources: list[RLDatasetBuilder] = chz.field(doc="What is mixed")
    weights: list[float] = chz.field(doc="Their shares, by number of groups; any sum")
    groups_per_batch: int = chz.field(doc="Groups of a batch")
    total_batches: int | None = chz.field(
        default=None, doc="Batches; None: until the first source should be used up"
    )
    seed: int = chz.field(default=0, doc="Of what comes when")

    @chz.validate
    def _check_mixture(self) -> None:
        _check(len(self.sources), self.weights, self.groups_per_batch, self.total_batches)

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        built = await asyncio.gather(*(source() for source in self.sources))
        if any(test is not None for _, test in built):
            logger.info("the test sets of interleaved sources are not used; evaluate them one by one")
        trains = [train for train, _ in built]
        mixed = _InterleavedRLDataset(
            trains, self.weights, self.groups_per_batch, self.total_batches, self.seed
        )
        return mixed, None
