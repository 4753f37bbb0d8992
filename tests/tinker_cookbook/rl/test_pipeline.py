"""The queue of rollouts: how many are under way, how old they may be, and how it ends when one fails."""

import asyncio
import random
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tinker_cookbook.rl.test_group_source import Sizes
from tinker_cookbook.rl.activity import Activity
from tinker_cookbook.rl.group_source import GroupId, GroupSource, GroupTask
from tinker_cookbook.rl.pipeline import RolledOut, RolloutPipeline
from tinker_cookbook.rl.rollouts import FailedGroup

RollOut = Callable[[GroupTask, Any], Awaitable[Any]]
NOTHING = FailedGroup([])


class Rollouts:
    """Counts those under way; each takes as many turns of the event loop as `turns` says."""

    def __init__(self, turns: Callable[[GroupId], int] = lambda _: 1):
        self.turns = turns
        self.running = 0
        self.most = 0
        self.begun: list[tuple[GroupId, int]] = []  # and the weights they were given
        self.cleaned_up = 0

    async def __call__(self, group: GroupTask, sampler: Any) -> FailedGroup:
        self.begun.append((group.id, sampler))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            for _ in range(self.turns(group.id)):
                await asyncio.sleep(0)
        finally:
            self.running -= 1
            self.cleaned_up += 1
        return NOTHING


def pipeline(
    sizes: list[int], roll_out: RollOut, *, capacity: int | None, max_staleness: int = 0
) -> tuple[RolloutPipeline, GroupSource]:
    dataset = Sizes(*sizes)
    source = GroupSource(dataset, len(dataset))
    source.open_until(len(dataset))
    made = RolloutPipeline(
        source, roll_out, capacity=capacity, max_staleness=max_staleness, activity=Activity()
    )
    return made, source


async def train(
    queue: RolloutPipeline, size: int, *, is_useful: Callable[[GroupId], bool] = lambda _: True
) -> list[list[RolledOut]]:
    """Steps of `size` groups until there are none; the weights of step n are the number n."""
    steps: list[list[RolledOut]] = []
    async with asyncio.timeout(20), queue:
        while True:
            await queue.sample_from(cast(Any, len(steps)), len(steps))
            taken: list[RolledOut] = []
            while len(taken) < size and (rolled := await queue.next_group()) is not None:
                if is_useful(rolled.id):
                    taken.append(rolled)
                else:
                    queue.drop(rolled)
            if not taken:
                return steps
            queue.trained()
            steps.append(taken)
            await asyncio.sleep(0)  # the update


@given(
    staleness=st.integers(0, 2),
    size=st.integers(1, 3),
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    seed=st.integers(0, 1000),
)
def test_nothing_older_than_allowed_is_trained_on_and_every_group_is_once(staleness, size, sizes, seed):
    rng = random.Random(seed)
    rollouts = Rollouts(lambda _: rng.choice([0, 1, 3, 30]))
    queue, source = pipeline(sizes, rollouts, capacity=size * (staleness + 1), max_staleness=staleness)
    steps = asyncio.run(train(queue, size))
    for step, taken in enumerate(steps):
        for rolled in taken:
            assert 0 <= step - rolled.sampling_client_step <= staleness
            assert (rolled.id, rolled.sampling_client_step) in rollouts.begun
    trained = sorted((each.id.batch, each.id.index) for taken in steps for each in taken)
    assert trained == [(batch, index) for batch, count in enumerate(sizes) for index in range(count)]
    assert all(len(taken) == size for taken in steps[:-1]), "only the data's end makes a smaller step"
    assert rollouts.most <= size * (staleness + 1)
    assert source.exhausted
    if staleness == 0:
        assert queue.stale_groups == 0, "nothing is begun before the weights it is trained on"


def test_a_group_that_others_overtook_is_sampled_again_from_newer_weights():
    slow = GroupId(0, 0)
    rollouts = Rollouts(lambda group: 60 if group == slow else 1)
    queue, _ = pipeline([12], rollouts, capacity=4, max_staleness=1)
    steps = asyncio.run(train(queue, 2))
    assert queue.stale_groups == 1
    (again,) = (each for taken in steps for each in taken if each.id.index == 0)
    assert again.id == GroupId(0, 0, attempt=1)
    assert again.sampling_client_step >= 2


def test_sampling_ahead_goes_on_while_an_update_is_made():
    rollouts = Rollouts()
    queue, _ = pipeline([8], rollouts, capacity=4, max_staleness=1)

    async def main() -> None:
        async with queue:
            await queue.sample_from(cast(Any, 0), 0)
            await asyncio.sleep(0)
            assert len(rollouts.begun) == 4
            for _ in range(2):
                await queue.next_group()
            queue.trained()
            assert len(rollouts.begun) == 4, "the update's groups count until its weights are there"
            await queue.sample_from(cast(Any, 1), 1)
            await asyncio.sleep(0)
            assert len(rollouts.begun) == 6
            assert {sampler for _, sampler in rollouts.begun[4:]} == {1}

    asyncio.run(main())


def test_a_dropped_group_makes_room_for_another_in_the_same_step():
    rollouts = Rollouts()
    queue, source = pipeline([6], rollouts, capacity=2)
    steps = asyncio.run(train(queue, 2, is_useful=lambda group: group.index % 3 == 0))
    assert [[each.id.index for each in taken] for taken in steps] == [[0, 3]]
    assert source.exhausted


def test_without_a_capacity_all_that_the_source_gives_is_begun_at_once():
    rollouts = Rollouts()
    queue, source = pipeline([3, 2], rollouts, capacity=None)

    async def main() -> None:
        async with queue:
            source.open_until(1)
            await queue.sample_from(cast(Any, 0), 0)
            await asyncio.sleep(0)
            assert len(rollouts.begun) == 3
            assert [(await queue.next_group()) is not None for _ in range(4)] == [True] * 3 + [False]

    asyncio.run(main())


@pytest.mark.parametrize(("capacity", "staleness"), [(None, 0), (3, 0), (6, 1)])
def test_a_rollout_that_fails_raises_its_own_error_and_the_others_are_cleaned_up(capacity, staleness):
    rollouts = Rollouts(lambda _: 10**9)  # the others never end by themselves

    class MyError(Exception):
        pass

    async def roll_out(group: GroupTask, sampler: Any) -> Any:
        if group.id.index == 1:
            await asyncio.sleep(0)
            raise MyError("the env is broken")
        return await rollouts(group, sampler)

    queue, _ = pipeline([3, 3], roll_out, capacity=capacity, max_staleness=staleness)
    with pytest.raises(MyError, match="the env is broken") as raised:
        asyncio.run(train(queue, 3))
    assert "in roll_out" in "".join(traceback.format_tb(raised.value.__traceback__))
    assert rollouts.running == 0
    assert rollouts.cleaned_up == len(rollouts.begun) > 0


def test_a_failing_data_set_raises_its_own_error():
    class Broken(Sizes):
        def get_batch(self, index: int) -> Any:
            if index == 1:
                raise OSError("the disk is gone")
            return super().get_batch(index)

    dataset, rollouts = Broken(1, 1), Rollouts(lambda _: 10**9)
    source = GroupSource(dataset, 2)
    source.open_until(2)
    queue = RolloutPipeline(source, rollouts, capacity=2, max_staleness=0, activity=Activity())
    with pytest.raises(OSError, match="the disk is gone"):
        asyncio.run(train(queue, 2))
    assert rollouts.running == 0


def test_cancelling_the_trainer_ends_all_rollouts():
    rollouts = Rollouts(lambda _: 10**9)
    queue, _ = pipeline([4], rollouts, capacity=4)

    async def main() -> None:
        task = asyncio.ensure_future(train(queue, 4))
        while rollouts.running < 4:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert rollouts.running == 0
    assert rollouts.cleaned_up == 4
