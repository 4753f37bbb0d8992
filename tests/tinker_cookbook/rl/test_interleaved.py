"""Behaviour 75."""

import asyncio
from collections import Counter

import chz
import pytest

from tinker_cookbook.rl.interleaved import InterleavedRLDatasetBuilder, _InterleavedRLDataset
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, RLDatasetBuilder


class Named(EnvGroupBuilder):
    def __init__(self, name: str):
        self.name = name

    async def make_envs(self):
        return []


class Numbered(RLDataset):
    """`count` groups in batches of `size`, the last one perhaps shorter."""

    def __init__(self, name: str, count: int, size: int):
        self.names = [f"{name}{i}" for i in range(count)]
        self.size = size

    def __len__(self):
        return -(-len(self.names) // self.size)

    def get_batch(self, index):
        return [Named(name) for name in self.names[index * self.size : (index + 1) * self.size]]


def mixed(*sources: RLDataset, weights=None, **options) -> _InterleavedRLDataset:
    options = {"groups_per_batch": 1} | options
    return _InterleavedRLDataset(sources, weights or [1.0] * len(sources), **options)


def names(dataset: RLDataset, index: int) -> list[str]:
    return [group.name for group in dataset.get_batch(index) if isinstance(group, Named)]


def all_names(dataset: RLDataset) -> list[str]:
    return [name for index in range(len(dataset)) for name in names(dataset, index)]


def test_a_batch_depends_on_seed_and_index_alone():
    def made(seed):
        return mixed(Numbered("a", 20, 4), Numbered("b", 20, 5), groups_per_batch=3, seed=seed)

    forwards = [names(made(0), i) for i in range(len(made(0)))]
    dataset = made(0)
    assert [names(dataset, i) for i in reversed(range(len(dataset)))] == forwards[::-1]
    assert [names(made(1), i) for i in range(len(made(1)))] != forwards


def test_every_group_comes_once_per_cycle_in_another_order_and_the_short_last_batch_counts():
    drawn = all_names(mixed(Numbered("a", 7, 3), total_batches=21))
    cycles = [drawn[i : i + 7] for i in (0, 7, 14)]
    assert all(sorted(cycle) == [f"a{i}" for i in range(7)] for cycle in cycles)
    assert len({tuple(cycle) for cycle in cycles}) == 3


def test_weights_are_shares():
    drawn = all_names(mixed(Numbered("a", 10, 2), Numbered("b", 10, 2), weights=[3, 1], total_batches=2000))
    assert Counter(name[0] for name in drawn)["a"] / 2000 == pytest.approx(0.75, abs=0.05)


def test_a_longer_mixture_begins_with_the_shorter_one():
    def made(batches):
        return mixed(Numbered("a", 5, 2), Numbered("b", 9, 2), groups_per_batch=2, total_batches=batches)

    assert all_names(made(30))[:20] == all_names(made(10))


@pytest.mark.parametrize("weights", [[0.5, 0.5], [1, 1]])
def test_the_natural_length_is_when_the_first_source_should_be_used_up(weights):
    dataset = mixed(Numbered("a", 10, 5), Numbered("b", 1000, 10), weights=weights)
    assert len(dataset) == 20
    assert len(mixed(Numbered("a", 1, 1), groups_per_batch=5)) == 1


@pytest.mark.parametrize("index", [-1, 20])
def test_an_index_outside_is_an_error(index):
    with pytest.raises(IndexError):
        mixed(Numbered("a", 10, 5), Numbered("b", 10, 5), weights=[0.5, 0.5]).get_batch(index)


@pytest.mark.parametrize(
    ("sources", "options", "words"),
    [
        ([Numbered("a", 1, 1)], {"weights": [1.0, 1.0]}, "same length"),
        ([], {}, "At least one"),
        ([Numbered("a", 1, 1)], {"weights": [0.0]}, "positive"),
        ([Numbered("a", 1, 1)], {"groups_per_batch": 0}, "groups_per_batch"),
        ([Numbered("a", 1, 1)], {"total_batches": 0}, "total_batches"),
        ([Numbered("a", 0, 1)], {}, "0 batches"),
    ],
)
def test_what_cannot_be_mixed_is_said(sources, options, words):
    with pytest.raises(ValueError, match=words):
        mixed(*sources, **options)


def test_an_empty_batch_is_said():
    class Hollow(Numbered):
        def get_batch(self, index):
            return []

    with pytest.raises(ValueError, match="0 groups"):
        mixed(Hollow("a", 2, 1))


@chz.chz
class NumberedBuilder(RLDatasetBuilder):
    name: str

    async def __call__(self):
        return Numbered(self.name, 4, 2), Numbered(self.name, 1, 1)


def test_the_builder_builds_its_sources():
    sources: list[RLDatasetBuilder] = [NumberedBuilder(name="a"), NumberedBuilder(name="b")]
    builder = InterleavedRLDatasetBuilder(
        sources=sources, weights=[1, 1], groups_per_batch=2, total_batches=8
    )
    train, test = asyncio.run(builder())
    assert test is None
    assert {name[0] for name in all_names(train)} == {"a", "b"}
    with pytest.raises(ValueError, match="same length"):
        InterleavedRLDatasetBuilder(sources=sources, weights=[1], groups_per_batch=2)
