"""Groups of which some rollouts fail, hang or are cancelled; and that no environment is left over."""

import asyncio
import pickle
import traceback
from dataclasses import dataclass
from typing import Any

import pytest

from tests.tinker_cookbook.rl.fakes import FOREVER, Group, Hangs, Policy, Raises, Turns
from tinker_cookbook.exceptions import AllTrajectoriesFailedError, ConfigurationError, EnvError
from tinker_cookbook.rl.rollout_strategy import (
    FailFast,
    MinViableGroup,
    RetryOnFailure,
    RolloutResult,
    RolloutStrategy,
    errors_of_group,
    rollout_strategy_from_config,
)
from tinker_cookbook.rl.types import RolloutError

SOON = 0.01  # a time limit of something that would take for ever
BROKEN = RolloutError("RuntimeError", "the env is broken")


def run(strategy: RolloutStrategy, builder: Group, policy: Any = None) -> RolloutResult:
    return asyncio.run(strategy.execute(builder, policy or Policy()))


class Waits(Turns):
    """Does not end before another one did."""

    def __init__(self, after: asyncio.Event):
        super().__init__()
        self.after = after

    async def step(self, action, *, extra=None):
        await self.after.wait()
        return await super().step(action, extra=extra)


class Tells(Turns):
    def __init__(self, after: asyncio.Event):
        super().__init__()
        self.after = after

    async def step(self, action, *, extra=None):
        self.after.set()
        return await super().step(action, extra=extra)


# --- all strategies ---------------------------------------------------------------------------------------

ALL = [FailFast(), RetryOnFailure(), MinViableGroup()]


@pytest.mark.parametrize("strategy", ALL)
def test_trajectories_come_in_the_order_of_the_members_whichever_ended_first(strategy):
    event = asyncio.Event()
    builder = Group([Waits(event), Tells(event)])
    result = run(strategy, builder)
    assert list(result.envs) == list(builder.envs)
    assert [len(trajectory.transitions) for trajectory in result.trajectories] == [1, 1]
    assert result.errors == []
    assert builder.released == [0, 0], "the grader still needs them"


@pytest.mark.parametrize("strategy", ALL)
def test_a_group_of_no_environments_names_its_builder(strategy):
    with pytest.raises(EnvError, match=r"Group.make_envs returned no environment"):
        run(strategy, Group([]))


@pytest.mark.parametrize("strategy", ALL)
def test_a_group_of_one(strategy):
    assert len(run(strategy, Group([Turns()])).trajectories) == 1


@pytest.mark.parametrize("strategy", ALL)
def test_cancelling_ends_all_rollouts_and_releases_their_environments(strategy):
    builder = Group([Hangs(), Turns(), Hangs()])

    async def main() -> None:
        task = asyncio.create_task(strategy.execute(builder, Policy()))
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
    assert builder.released == [1, 1, 1]


@pytest.mark.parametrize("strategy", ALL)
@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt()])
def test_an_interrupt_within_a_rollout_is_never_tolerated(strategy, error):
    builder = Group([Raises(error=error), Hangs()])
    with pytest.raises(type(error)):
        run(strategy, builder)
    assert builder.calls == 1, "not tried again"


@pytest.mark.parametrize("strategy", ALL)
def test_strategies_survive_pickle(strategy):
    assert pickle.loads(pickle.dumps(strategy)) == strategy


@dataclass
class Numbered(Policy):
    indices: list[int] | None = None

    def for_rollout(self, index: int) -> "Numbered":
        assert self.indices is not None
        self.indices.append(index)
        return self


def test_each_rollout_has_its_own_policy_and_a_retry_a_new_one():
    policy = Numbered(indices=[])
    run(RetryOnFailure(), Group([Turns(), Raises(), Raises()]), policy)
    assert policy.indices == [0, 1, 2, 3, 4]


def test_any_callable_can_be_a_policy():
    inner = Policy()

    async def policy(model_input, stop):
        return await inner(model_input, stop)

    assert len(run(FailFast(), Group([Turns()]), policy).trajectories) == 1


# --- FailFast ---------------------------------------------------------------------------------------------


def test_fail_fast_raises_the_error_itself_and_ends_the_others():
    error = RuntimeError("x")
    builder = Group([Hangs(), Raises(error=error), Turns()])
    with pytest.raises(RuntimeError) as caught:
        run(FailFast(), builder)
    assert caught.value is error
    assert "in step" in "".join(traceback.format_exception(error)), "with the frames of the environment"
    assert builder.released == [1, 1, 1]
    assert not FailFast().catches_group_errors


# --- RetryOnFailure ---------------------------------------------------------------------------------------


def test_a_failed_rollout_is_tried_again_in_its_place():
    builder = Group([Turns(turns=1), Raises(), Turns(turns=3)], replacement=lambda: Turns(turns=2))
    result = run(RetryOnFailure(), builder)
    assert [len(trajectory.transitions) for trajectory in result.trajectories] == [1, 2, 3]
    assert [env.turns for env in result.envs if isinstance(env, Turns)] == [1, 2, 3]
    assert result.errors == [BROKEN]
    assert RetryOnFailure().catches_group_errors


def test_environments_that_a_retry_does_not_need_are_released():
    builder = Group([Turns(), Raises(), Turns()])
    result = run(RetryOnFailure(), builder)
    kept = [index for index, env in enumerate(builder.made) if any(env is used for used in result.envs)]
    assert builder.released == [0, 1, 0, 1, 0, 1]
    assert kept == [0, 2, 4]


class MakesOne(Group):
    async def make_env(self, index):
        env = self.replacement()
        self.made.append(env)
        return env


def test_a_builder_that_can_make_one_environment_is_asked_for_one():
    builder = MakesOne([Raises(), Turns()])
    run(RetryOnFailure(), builder)
    assert (builder.calls, len(builder.made)) == (1, 3)


def test_all_members_share_the_retries_and_then_the_error_is_raised():
    builder = Group([Raises(), Raises(), Hangs()], replacement=Raises)
    with pytest.raises(RuntimeError, match="the env is broken") as caught:
        run(RetryOnFailure(max_retries=2), builder)
    assert builder.calls == 3
    assert errors_of_group(caught.value) == [BROKEN] * 4
    assert all(builder.released)


def test_a_rollout_that_hangs_is_tried_again():
    result = run(RetryOnFailure(per_rollout_timeout=SOON), Group([Hangs(), Turns()]))
    (error,) = result.errors
    assert error.error_type == "TimeoutError"
    assert "Hangs took longer than 0.01 s" in error.error_message
    assert len(result.trajectories) == 2


class CannotMakeMore(Group):
    async def make_env(self, index):
        raise OSError("no more sandboxes")


def test_a_retry_for_which_no_environment_can_be_made_ends_the_group():
    builder = CannotMakeMore([Raises(), Hangs()])
    with pytest.raises(OSError, match="no more sandboxes"):
        run(RetryOnFailure(), builder)
    assert builder.released == [1, 1]


# --- MinViableGroup ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "floor"), [(1, 1), (2, 2), (4, 3), (8, 6)])
def test_three_quarters_of_a_group_are_enough(size, floor):
    strategy = MinViableGroup(max_retries=0)

    def group(ending: int) -> Group:
        return Group([*(Turns() for _ in range(ending)), *(Raises() for _ in range(size - ending))])

    result = run(strategy, group(floor))
    assert len(result.trajectories) == floor
    assert len(result.errors) == size - floor
    builder = group(floor - 1)
    with pytest.raises(
        AllTrajectoriesFailedError, match=f"{floor - 1}/{size} .*minimum viable group size {floor}"
    ) as caught:
        run(strategy, builder)
    assert errors_of_group(caught.value) == [BROKEN] * (size - floor + 1)
    assert builder.released == [1] * size


class FailsAfter(Waits):
    async def step(self, action, *, extra=None):
        await super().step(action, extra=extra)
        raise RuntimeError("the env is broken")


def test_nothing_is_tried_again_once_there_are_enough():
    event = asyncio.Event()
    builder = Group([Turns(), Tells(event), FailsAfter(event)])
    result = run(MinViableGroup(min_successful=2), builder)
    assert builder.calls == 1
    assert len(result.trajectories) == 2
    assert result.errors == [BROKEN]


def test_failures_are_tried_again_while_there_are_too_few():
    builder = Group([Raises(), Raises()])
    result = run(MinViableGroup(), builder)
    assert len(result.trajectories) == 2
    assert len(result.errors) == 2


def test_a_rollout_that_hangs_is_left_out():
    strategy = MinViableGroup(min_successful=1, max_retries=0, per_rollout_timeout=SOON)
    result = run(strategy, Group([Hangs(), Turns()]))
    assert [error.error_type for error in result.errors] == ["TimeoutError"]
    assert len(result.trajectories) == 1


# --- groups that play together ----------------------------------------------------------------------------


class Table(Group):
    """Its members wait for each other, so one alone would wait for ever."""

    members_play_together = True

    def __init__(self, failing_games: int):
        super().__init__([])
        self.failing_games = failing_games

    async def make_envs(self):
        self.calls += 1
        event = asyncio.Event()
        second = Raises() if self.calls <= self.failing_games else Tells(event)
        envs = [Waits(event), second]
        self.made += envs
        return envs


@pytest.mark.parametrize("strategy", [RetryOnFailure(), MinViableGroup(min_successful=1)])
def test_members_that_play_together_are_tried_again_together(strategy):
    builder = Table(failing_games=2)
    policy = Numbered(indices=[])
    result = run(strategy, builder, policy)
    assert builder.calls == 3
    assert result.errors == [BROKEN] * 2
    assert list(result.envs) == builder.made[-2:]
    assert builder.released == [1, 1, 1, 1, 0, 0]
    assert policy.indices == [0, 1, 2, 3, 4, 5]


def test_a_game_that_fails_each_time_raises_its_error():
    with pytest.raises(RuntimeError, match="the env is broken") as caught:
        run(RetryOnFailure(max_retries=1), Table(failing_games=9))
    assert errors_of_group(caught.value) == [BROKEN] * 2


# --- settings ---------------------------------------------------------------------------------------------


def test_the_strategy_by_tolerance():
    own = MinViableGroup(min_successful=2)
    assert rollout_strategy_from_config(False) == FailFast()
    assert rollout_strategy_from_config(True) == RetryOnFailure()
    assert rollout_strategy_from_config(own) is own
    for wrong in (0.5, None, 1, "yes"):
        with pytest.raises(ConfigurationError, match="rollout_error_tolerance"):
            rollout_strategy_from_config(wrong)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "make",
    [
        lambda: RetryOnFailure(max_retries=-1),
        lambda: RetryOnFailure(per_rollout_timeout=-1),
        lambda: MinViableGroup(min_successful=0),
        lambda: MinViableGroup(per_rollout_timeout=float("nan")),
    ],
)
def test_settings_that_cannot_work_are_refused(make):
    with pytest.raises(ConfigurationError, match="must be"):
        make()


class Stubborn(Turns):
    """Does not end when it is cancelled."""

    async def step(self, action, *, extra=None):
        try:
            await FOREVER().wait()
        except asyncio.CancelledError:
            await FOREVER().wait()


class CannotClean(Turns):
    async def cleanup(self):
        raise OSError("the sandbox is gone")


def test_what_cannot_be_ended_or_released_is_logged_and_does_not_hide_the_error(monkeypatch, caplog):
    monkeypatch.setattr("tinker_cookbook.rl.rollout_cleanup.CLEANUP_SECONDS", SOON)
    builder = Group([Stubborn(), Raises(), CannotClean()])
    with pytest.raises(RuntimeError, match="the env is broken"):
        run(FailFast(), builder)
    assert "1 rollouts run on" in caplog.text
    assert "CannotClean could not be cleaned up" in caplog.text
    assert "the sandbox is gone" in caplog.text
