"""No group is lost and none is done twice, wherever a run stops."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tinker_cookbook.rl.fakes import Group, Turns
from tinker_cookbook.exceptions import DataError
from tinker_cookbook.rl.group_source import GroupId, GroupSource
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset


class Sizes(RLDataset):
    """Batches of the given sizes, whose builders are known by their place."""

    def __init__(self, *sizes: int):
        self.builders = [[Group([Turns()]) for _ in range(size)] for size in sizes]

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        return self.builders[index]

    def __len__(self) -> int:
        return len(self.builders)


def opened(dataset: RLDataset, **more: int) -> GroupSource:
    source = GroupSource(dataset, len(dataset), **more)
    source.open_until(len(dataset))
    return source


async def take_all(source: GroupSource) -> list[tuple[int, int]]:
    places: list[tuple[int, int]] = []
    while (task := await source.next()) is not None:
        places.append((task.id.batch, task.id.index))
    return places


def test_groups_come_in_order_as_far_as_the_source_is_open():
    async def main() -> None:
        dataset = Sizes(2, 0, 1)
        source = GroupSource(dataset, 3)
        assert await source.next() is None
        source.open_until(1)
        assert await take_all(source) == [(0, 0), (0, 1)]
        source.open_until(99)
        task = await source.next()
        assert task is not None
        assert task.id == GroupId(2, 0)
        assert task.builder is dataset.builders[2][0]
        assert await source.next() is None

    asyncio.run(main())


def test_a_group_put_back_comes_before_all_others_as_another_attempt():
    async def main() -> None:
        source = opened(Sizes(3))
        first, second = await source.next(), await source.next()
        assert first is not None
        assert second is not None
        source.put_back(first.id)
        again = await source.next()
        assert again is not None
        assert again.id == GroupId(0, 0, attempt=1)
        assert again.builder is first.builder
        source.put_back(again.id)
        assert source.state() == {"cursor": [0, 2], "pending": [[0, 0, 2], [0, 1, 0]]}

    asyncio.run(main())


def test_exhausted_when_all_that_was_begun_is_done():
    async def main() -> None:
        source = opened(Sizes(1, 1))
        assert not source.exhausted
        first, second = await source.next(), await source.next()
        assert first is not None
        assert second is not None
        source.done(first.id)
        assert not source.exhausted
        source.put_back(second.id)
        assert not source.exhausted
        await take_all(source)
        source.done(GroupId(0 + 1, 0, 1))
        assert source.exhausted
        assert source.state() == {"cursor": [2, 0], "pending": []}

    asyncio.run(main())


# what happens next: a group is taken, or of those under way the n-th is done or put back
actions = st.lists(
    st.one_of(
        st.just(("take", 0)), st.tuples(st.sampled_from(["done", "put back", "restart"]), st.integers(0, 5))
    ),
    max_size=40,
)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=4), actions)
def test_a_restart_at_any_point_loses_nothing_and_repeats_nothing(sizes, happenings):
    dataset = Sizes(*sizes)
    everything = [(batch, index) for batch, size in enumerate(sizes) for index in range(size)]

    async def main() -> None:
        source = opened(dataset)
        running: list[GroupId] = []
        done: list[tuple[int, int]] = []
        for what, which in happenings:
            if what == "take":
                task = await source.next()
                if task is not None:
                    assert task.builder is dataset.builders[task.id.batch][task.id.index]
                    running.append(task.id)
            elif what == "restart":
                state = source.state()
                source = opened(dataset, first_batch=which)  # which the state overrules
                await source.restore(state)
                assert source.state() == state
                running = []
            elif running:
                group = running.pop(which % len(running))
                if what == "done":
                    source.done(group)
                    done.append((group.batch, group.index))
                else:
                    source.put_back(group)
        done += [(group.batch, group.index) for group in running]
        for group in running:
            source.done(group)
        while (task := await source.next()) is not None:
            source.done(task.id)
            done.append((task.id.batch, task.id.index))
        assert sorted(done) == everything
        assert source.exhausted

    asyncio.run(main())


def test_cancelled_while_the_data_set_thinks_it_loses_nothing():
    async def main() -> None:
        source = opened(Sizes(2))
        task = await source.next()
        assert task is not None
        source.put_back(task.id)
        before = source.state()
        taking = asyncio.ensure_future(source.next())
        await asyncio.sleep(0)
        taking.cancel()
        await asyncio.wait([taking])
        assert source.state() == before
        assert sorted(await take_all(source)) == [(0, 0), (0, 1)]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (None, "batch 0 of Odd is a NoneType"),
        (iter([]), "is a list_iterator, and no sequence"),
        (["a string"], "holds a str, which is no EnvGroupBuilder"),
        ([Turns()], "holds a Turns"),
    ],
)
def test_a_data_set_that_gives_something_else_is_refused(batch: Any, words: str):
    class Odd(Sizes):
        def get_batch(self, index: int) -> Any:
            return batch

    with pytest.raises(DataError, match=words):
        asyncio.run(opened(Odd(1)).next())


def test_a_data_set_that_forgets_groups_is_refused():
    async def main() -> None:
        dataset = Sizes(2)
        source = opened(dataset)
        await source.restore({"cursor": [1, 0], "pending": [[0, 1, 0]]})
        dataset.builders[0].pop()
        await source.next()

    with pytest.raises(DataError, match="has 1 groups, and had more before"):
        asyncio.run(main())
