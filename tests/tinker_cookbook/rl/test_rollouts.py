"""Groups: grading, limits and rewards, cleanup, errors that cost a group or the run."""

import asyncio
import math
from typing import Any

import pytest

from tests.tinker_cookbook.rl.fakes import FOREVER, Group, Hangs, Policy, Raises, Turns
from tests.tinker_cookbook.test_completers import Listener
from tinker_cookbook.exceptions import AllTrajectoriesFailedError, EnvError
from tinker_cookbook.rl.rollout_limits import RolloutLimits, TerminationRewardPolicy
from tinker_cookbook.rl.rollout_strategy import FailFast, MinViableGroup, RetryOnFailure, RolloutStrategy
from tinker_cookbook.rl.rollouts import (
    FailedGroup,
    RolloutErrorCounter,
    RolloutRequest,
    do_group_rollout,
    do_group_rollout_and_filter_constant_reward,
    do_single_rollout,
    run_group_rollout,
)
from tinker_cookbook.rl.types import RolloutError, TrajectoryGroup
from tinker_cookbook.utils import logtree
from tinker_cookbook.utils.trace import trace_iteration

SOON = 0.01
BROKEN = RolloutError("RuntimeError", "the env is broken")
ZEROING = TerminationRewardPolicy(zero_reward_on_limit=True)


def group_rollout(builder: Group, **settings: Any) -> TrajectoryGroup:
    return asyncio.run(do_group_rollout(builder, Policy(), **settings))


def filtered(builder: Group, *, remove: bool = True, **settings: Any) -> TrajectoryGroup | None:
    client: Any = Listener(logprobs=[-1.0])
    rollout = do_group_rollout_and_filter_constant_reward(client, builder, 5, 0.5, remove, **settings)
    return asyncio.run(rollout)


def limited(env: Turns, **limits: Any) -> Turns:
    env.rollout_limits = RolloutLimits(**limits)  # pyright: ignore[reportAttributeAccessIssue]
    return env


# --- rewards ----------------------------------------------------------------------------------------------


def test_a_single_rollout():
    assert asyncio.run(do_single_rollout(Policy(), Turns())).stop_reason == "completed"


def test_the_reward_of_the_group_is_added():
    builder = Group([Turns(reward=1.0), Turns(reward=2.0)], rewards=[0.5, -0.5])
    group = group_rollout(builder)
    assert group.final_rewards_G == [0.5, -0.5]
    assert group.get_total_rewards() == [1.5, 1.5]
    assert group.metrics_G == [{}, {}]
    assert group.rollout_errors == []
    assert builder.cleanups == 1
    assert builder.released == [1, 1]


@pytest.mark.parametrize(
    ("rewards", "words"), [([1.0], "1 rewards for 2"), ([1.0, 2.0, 3.0], "3 rewards for 2")]
)
def test_a_grader_that_gives_another_number_of_rewards_is_named(rewards, words):
    with pytest.raises(EnvError, match=f"Group.compute_group_rewards gave {words} trajectories"):
        group_rollout(Group([Turns(), Turns()], rewards=rewards))


@pytest.mark.parametrize("reward", [math.nan, math.inf, None, "good"])
def test_a_grader_that_gives_no_number_is_named(reward):
    with pytest.raises(EnvError, match=r"Group.compute_group_rewards, for trajectory 1, gave the reward"):
        group_rollout(Group([Turns(), Turns()], rewards=[1.0, reward]))


class NeverGrades(Group):
    async def compute_group_rewards(self, trajectory_group, env_group):
        await FOREVER().wait()
        raise AssertionError


def test_a_grader_that_never_returns_runs_out_of_time():
    builder = NeverGrades([Turns()])
    with pytest.raises(TimeoutError, match=r"NeverGrades.compute_group_rewards took longer than 0.01 s"):
        group_rollout(builder, termination=TerminationRewardPolicy(grader_timeout_seconds=SOON))
    assert (builder.cleanups, builder.released) == (1, [1])


def test_what_a_limit_ended_earns_nothing_and_what_it_lost_stays_lost():
    envs = [
        Turns(reward=1.0),  # completed
        Turns(reward=1.0, metrics={"stop/max_turns": 1.0}),
        Turns(reward=-1.0, metrics={"stop/max_turns": 1.0}),
        Turns(reward=1.0, metrics={"stop/context_overflow": 1.0}),
        Turns(reward=1.0, metrics={}),
    ]
    rewards = [0.5] * 5
    group = group_rollout(Group(envs, rewards=rewards), termination=ZEROING)
    assert group.get_total_rewards() == [1.5, 0.0, -0.5, 1.5, 1.5]
    assert [metrics.get("zero_reward_on_limit") for metrics in group.metrics_G] == [
        None,
        1.0,
        None,
        None,
        None,
    ]
    for env in envs:
        env.taken.clear()
    untouched = group_rollout(Group(envs, rewards=rewards))
    assert untouched.get_total_rewards() == [1.5, 1.5, -0.5, 1.5, 1.5]


SKIPPING = {"zero_reward_on_limit": True, "skip_grading_on_timeout": True}


@pytest.mark.parametrize(
    ("fields", "all_time_out", "graded"),
    [
        (SKIPPING, True, False),
        (SKIPPING, False, True),
        ({**SKIPPING, "skip_grading_on_timeout": False}, True, True),
        ({**SKIPPING, "zero_reward_on_limit": False}, True, True),
        ({**SKIPPING, "limit_stop_reasons": ("max_turns",)}, True, True),
        (None, True, True),
    ],
)
def test_grading_is_left_out_only_if_all_ran_out_of_time_and_would_get_nothing(fields, all_time_out, graded):
    late, other = Turns(metrics={"stop/rollout_timeout": 1.0}), Turns()
    builder = Group([late, Turns(metrics=late.metrics) if all_time_out else other], rewards=[5.0, 5.0])
    group = group_rollout(builder, termination=fields and TerminationRewardPolicy(**fields))
    assert builder.gradings == graded
    if not graded:
        assert group.get_total_rewards() == [0.0, 0.0]


# --- cleanup ----------------------------------------------------------------------------------------------


class BadCleanup(Group):
    async def cleanup(self):
        await super().cleanup()
        raise OSError("cannot clean up")


def test_cleanup_runs_after_every_end():
    for builder in (Group([Raises()]), Group([Turns()], rewards=[]), Group([])):
        with pytest.raises(RuntimeError):
            group_rollout(builder)
        assert builder.cleanups == 1
        assert builder.released == [1] * len(builder.envs)


def test_an_error_of_cleanup_does_not_hide_another_one_and_is_raised_if_there_is_none(caplog):
    with pytest.raises(RuntimeError, match="the env is broken"):
        group_rollout(BadCleanup([Raises()]))
    assert "BadCleanup.cleanup() failed" in caplog.text
    assert "cannot clean up" in caplog.text
    with pytest.raises(OSError, match="cannot clean up"):
        group_rollout(BadCleanup([Turns()]))


class NeverCleans(Group):
    async def cleanup(self):
        await FOREVER().wait()


def test_a_cleanup_that_never_ends_is_given_up(monkeypatch):
    monkeypatch.setattr("tinker_cookbook.rl.rollout_cleanup.CLEANUP_SECONDS", SOON)
    with pytest.raises(TimeoutError, match=r"NeverCleans.cleanup\(\) took longer"):
        group_rollout(NeverCleans([Turns()]))


def test_cleanup_runs_when_cancelled():
    builder = Group([Hangs()])

    async def main() -> None:
        task = asyncio.create_task(do_group_rollout(builder, Policy()))
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert (builder.cleanups, builder.released) == (1, [1])


# --- groups that fail, groups that teach nothing ----------------------------------------------------------


def test_the_error_of_a_group_is_raised_or_costs_the_group_as_the_strategy_says():
    with pytest.raises(EnvError):
        filtered(Group([Turns()], rewards=[math.nan]))
    assert filtered(Group([Turns()], rewards=[math.nan]), strategy=RetryOnFailure()) is None
    with pytest.raises(RuntimeError, match="the env is broken"):
        filtered(Group([Raises()]))
    assert filtered(Group([Raises()], replacement=Raises), strategy=MinViableGroup()) is None


class AlwaysEmpty(RolloutStrategy):
    async def execute(self, env_group_builder, policy):
        raise AllTrajectoriesFailedError("none")


def test_a_group_without_any_trajectory_costs_the_group_with_any_strategy():
    assert filtered(Group([Turns()]), strategy=AlwaysEmpty()) is None


def test_an_interrupt_is_never_tolerated():
    for error in (asyncio.CancelledError(), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            filtered(Group([Raises(error=error)]), strategy=RetryOnFailure())


def test_equal_rewards_are_left_out_if_asked_for():
    assert filtered(Group([Turns(), Turns()])) is None
    kept = filtered(Group([Turns(), Turns()]), remove=False)
    assert kept is not None
    assert kept.get_total_rewards() == [1.0, 1.0]
    assert filtered(Group([Turns(), Turns(reward=2.0)])) is not None


def test_one_observation_too_long_does_not_fail_its_group():
    client: Any = Listener(logprobs=[-1.0])
    builder = Group([Turns(start=100), Turns()])
    request = RolloutRequest(client, builder, 5, 1.0, context_window=50)
    group = asyncio.run(run_group_rollout(request))
    assert isinstance(group, TrajectoryGroup)
    assert [trajectory.stop_reason for trajectory in group.trajectories_G] == [
        "context_overflow",
        "completed",
    ]


def test_a_request_samples_as_it_says():
    client: Any = Listener(logprobs=[-1.0])
    for _ in range(2):
        request = RolloutRequest(client, Group([Turns(turns=2), Turns()]), 5, 0.5, seed=3)
        asyncio.run(run_group_rollout(request))
    params = [asked["sampling_params"] for asked in client.asked]
    assert {(given.max_tokens, given.temperature) for given in params} == {(5, 0.5)}
    seeds = [given.seed for given in params]
    assert [asked["num_samples"] for asked in client.asked] == [2, 1] * 2, (
        "the first prompt of both in one request"
    )
    assert seeds[:2] == seeds[2:]
    assert len(set(seeds)) == 2


# --- counting ---------------------------------------------------------------------------------------------


def run_request(builder: Group, strategy: RolloutStrategy) -> TrajectoryGroup | FailedGroup:
    client: Any = Listener(logprobs=[-1.0])
    return asyncio.run(run_group_rollout(RolloutRequest(client, builder, 5, 1.0, strategy=strategy)))


def test_errors_are_counted_over_the_run_and_constant_rewards_are_none():
    counter = RolloutErrorCounter()
    constant = run_request(Group([Turns(), Turns()]), FailFast())
    assert isinstance(constant, TrajectoryGroup), "whoever leaves it out knows why"
    counter.ingest(constant)
    assert counter.get_metrics() == {}
    retried = run_request(Group([Raises(), Turns()]), RetryOnFailure())
    counter.ingest(retried)
    assert counter.get_metrics() == {
        "rollout_errors/RuntimeError": 1.0,
        "rollout_errors/total": 1.0,
        "rollout_errors/groups_skipped": 0.0,
    }
    failed = run_request(Group([Raises()], replacement=Raises), RetryOnFailure(max_retries=1))
    assert failed == FailedGroup([BROKEN] * 2)
    counter.ingest(failed)
    counter.ingest(run_request(Group([Turns()], rewards=[]), RetryOnFailure()))
    counter.ingest(None)
    assert counter.get_metrics("e") == {
        "e/RuntimeError": 3.0,
        "e/EnvError": 1.0,
        "e/total": 4.0,
        "e/groups_skipped": 3.0,
    }


# --- what is logged ---------------------------------------------------------------------------------------


class Chatty(Turns):
    async def step(self, action, *, extra=None):
        with logtree.scope_header("A step"):
            logtree.log_text("what the env says")
        return await super().step(action, extra=extra)


@pytest.mark.parametrize("enable", [True, False])
def test_a_group_is_logged_unless_switched_off(enable):
    with logtree.init_trace("report") as report:
        filtered(Group([Chatty()]), enable_logging=enable, remove=False)
    page = report.get_html()
    assert ("what the env says" in page) == enable
    assert ("Trajectories" in page) == enable


def test_where_the_time_goes_is_recorded():
    with trace_iteration(0) as window:
        group_rollout(Group([Turns(turns=2), Turns()]))
    counts: dict[str, int] = {}
    for span in window.spans:
        counts[span.name] = counts.get(span.name, 0) + 1
    assert counts == {
        "do_group_rollout": 1,
        "env_initial_observation": 2,
        "policy_sample": 3,
        "env_step": 3,
        "compute_group_rewards": 1,
    }
