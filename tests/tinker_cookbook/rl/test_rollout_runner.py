"""The rollout loop: limits, ends, hooks, and environments that misbehave."""

import asyncio
import logging
import math
from typing import Any

import pytest
import tinker

from tests.tinker_cookbook.rl.fakes import FOREVER, Hangs, Policy, Raises, Turns, prompt
from tinker_cookbook.completers import ContextWindowExceededError, TinkerTokenCompleter, TokensWithLogprobs
from tinker_cookbook.exceptions import EnvError
from tinker_cookbook.renderers.messages import Message
from tinker_cookbook.rl import rollout_runner
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, RolloutLimits
from tinker_cookbook.rl.rollout_presets import RolloutConfig, agentic
from tinker_cookbook.rl.rollout_runner import (
    TRUNCATION_METRIC_KEY,
    RolloutHooks,
    SamplingTurnTimeoutError,
    run_rollout,
)
from tinker_cookbook.rl.types import InitialObservationOverflow, Trajectory

SOON = 0.01  # a time limit of something that would take for ever


def play(policy: Any, env: Any, **settings: Any) -> Trajectory:
    return asyncio.run(run_rollout(policy, env, **settings))


def stops(trajectory: Trajectory) -> list[list[str]]:
    return [[key for key in turn.metrics if key.startswith("stop/")] for turn in trajectory.transitions]


# --- without limits ---------------------------------------------------------------------------------------


def test_an_episode():
    policy, env = Policy(), Turns(turns=2)
    trajectory = play(policy, env)
    assert policy.asked == [{"length": 4}, {"length": 7}], "no max_tokens without limits"
    assert env.taken == [{"stop_reason": "stop"}] * 2
    assert [turn.reward for turn in trajectory.transitions] == [0.0, 1.0]
    assert [turn.episode_done for turn in trajectory.transitions] == [False, True]
    assert [turn.ob.length for turn in trajectory.transitions] == [4, 7]
    assert trajectory.final_ob.length == 10
    assert trajectory.stop_reason == "completed"


def test_an_end_without_a_reason_has_none():
    assert play(Policy(), Turns(metrics={})).stop_reason is None


# --- budgets ----------------------------------------------------------------------------------------------


def test_the_cap_is_the_smallest_of_what_is_left_turn_by_turn():
    policy = Policy(tokens=5)
    limits = RolloutLimits(max_turn_tokens=5, max_trajectory_tokens=17, max_sampled_tokens=12)
    trajectory = play(policy, Turns(turns=9), limits=limits)
    assert policy.asked == [
        {"length": 4, "max_tokens": 5},  # turn
        {"length": 7, "max_tokens": 5},  # turn
        {"length": 10, "max_tokens": 2},  # sampled: 12 - 10
    ]
    assert trajectory.stop_reason == "max_sampled_tokens"


@pytest.mark.parametrize(("limit", "asked", "reason"), [(5, [], "max_tokens"), (6, [2], "completed")])
def test_one_token_is_not_enough_for_a_turn_and_two_are(limit, asked, reason):
    policy = Policy()
    trajectory = play(policy, Turns(), limits=RolloutLimits(max_trajectory_tokens=limit))
    assert [call["max_tokens"] for call in policy.asked] == asked
    assert trajectory.stop_reason == reason


def test_the_budget_of_the_trajectory_is_named_if_both_are_spent():
    limits = RolloutLimits(max_trajectory_tokens=5, max_sampled_tokens=1)
    assert play(Policy(), Turns(), limits=limits).stop_reason == "max_tokens"


def test_a_stop_of_the_runner_ends_the_last_turn_with_one_reason():
    env = Turns(turns=5)
    trajectory = play(Policy(), env, limits=RolloutLimits(max_turns=2))
    assert len(env.taken) == 2
    assert stops(trajectory) == [[], ["stop/max_turns"]]
    last = trajectory.transitions[-1]
    assert last.episode_done
    assert last.metrics == {"a": 1, "stop/max_turns": 1.0}
    assert trajectory.stop_reason == "max_turns"
    assert trajectory.final_ob.length == 10


def test_a_stop_before_the_first_turn_leaves_a_turn_without_tokens():
    trajectory = play(Policy(), Turns(), limits=RolloutLimits(max_sampled_tokens=1))
    (only,) = trajectory.transitions
    assert (only.ob.length, only.ac.tokens, only.reward, only.episode_done) == (0, [], 0.0, True)
    assert only.metrics == {"stop/max_sampled_tokens": 1.0}
    assert trajectory.final_ob.length == 4


def test_turns_that_were_cut_off_are_counted():
    trajectory = play(Policy(stop_reason="length"), Turns(turns=3))
    assert [turn.metrics.get(TRUNCATION_METRIC_KEY) for turn in trajectory.transitions] == [None, None, 2.0]
    assert TRUNCATION_METRIC_KEY not in play(Policy(), Turns(turns=3)).transitions[-1].metrics


# --- where settings come from -----------------------------------------------------------------------------


class Settable(Turns):
    told: tuple[Any, ...] = ()

    def set_max_tool_calls(self, max_tool_calls: int) -> None:
        self.told += (max_tool_calls,)

    def set_parse_error_policy(self, policy: ParseErrorPolicy) -> None:
        self.told += (policy,)


def test_an_environment_brings_its_own_limits_and_explicit_ones_win():
    env = Turns(turns=3)
    env.rollout_limits = RolloutLimits(max_turns=1)  # pyright: ignore[reportAttributeAccessIssue]
    assert play(Policy(), env).stop_reason == "max_turns"
    for settings in ({"limits": RolloutLimits()}, {"config": RolloutConfig()}):
        env.taken.clear()
        assert play(Policy(), env, **settings).stop_reason == "completed"
    limited = RolloutConfig(limits=RolloutLimits(max_turns=2))
    env.taken.clear()
    assert len(play(Policy(), env, config=limited, limits=RolloutLimits(max_turns=1)).transitions) == 1


def test_an_environment_is_told_what_only_it_can_see_to():
    env = Settable()
    play(Policy(), env, config=agentic())
    assert env.told == (30, ParseErrorPolicy(max_consecutive=2))
    own = ParseErrorPolicy(max_consecutive=7)
    play(Policy(), env := Settable(), config=agentic(), parse_errors=own)
    assert env.told == (30, own)


def test_an_environment_that_cannot_be_told_runs_and_is_warned_of(caplog):
    with caplog.at_level(logging.WARNING):
        assert play(Policy(), Turns(), config=agentic()).stop_reason == "completed"
    assert "set_max_tool_calls" in caplog.text
    assert "set_parse_error_policy" in caplog.text


# --- time -------------------------------------------------------------------------------------------------


class HangsLater(Turns):
    async def step(self, action, *, extra=None):
        if self.taken:
            await FOREVER().wait()
        return await super().step(action, extra=extra)


class Clears(RolloutHooks):
    def __init__(self, *cleared: str):
        self.cleared = cleared
        self.asked: list[str] = []

    async def on_stop_reason(self, reason, state):
        self.asked.append(reason)
        await asyncio.sleep(0)  # hooks may take a while, also beyond the deadline
        return None if reason in self.cleared else reason


def test_a_rollout_that_hangs_ends_with_the_turns_it_has_and_no_hook_can_change_that():
    hooks = Clears("rollout_timeout")
    trajectory = play(
        Policy(), HangsLater(turns=5), limits=RolloutLimits(rollout_timeout_seconds=SOON), hooks=hooks
    )
    assert trajectory.stop_reason == "rollout_timeout"
    assert stops(trajectory) == [["stop/rollout_timeout"]]
    assert hooks.asked == []


class NeverBegins(Turns):
    async def initial_observation(self):
        await FOREVER().wait()
        raise AssertionError


def test_an_environment_that_never_begins_runs_out_of_time_as_well():
    trajectory = play(Policy(), NeverBegins(), limits=RolloutLimits(rollout_timeout_seconds=SOON))
    assert trajectory.stop_reason == "rollout_timeout"
    assert trajectory.transitions[0].ac.tokens == []


class Clock:
    """Ten seconds pass with each look."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 10
        return self.now


def test_a_deadline_noticed_between_turns_is_up_to_the_hook(monkeypatch):
    limits = RolloutLimits(rollout_timeout_seconds=30)
    monkeypatch.setattr(rollout_runner, "time", Clock())
    assert play(Policy(), Turns(turns=9), limits=limits).stop_reason == "rollout_timeout"
    monkeypatch.setattr(rollout_runner, "time", Clock())
    hooks = Clears("rollout_timeout")
    trajectory = play(Policy(), Turns(turns=9), limits=limits, hooks=hooks)
    assert trajectory.stop_reason == "completed"
    assert len(trajectory.transitions) == 9
    assert hooks.asked.count("rollout_timeout") > 1


class NeverAnswers(Policy):
    async def __call__(self, model_input, stop, **keywords):
        await FOREVER().wait()
        raise AssertionError


def test_a_policy_that_does_not_answer_is_an_error_also_within_a_longer_limit():
    limits = RolloutLimits(sampling_turn_timeout_seconds=SOON, rollout_timeout_seconds=60)
    with pytest.raises(SamplingTurnTimeoutError, match="turn 0 of Turns") as caught:
        play(NeverAnswers(), Turns(), limits=limits)
    assert not isinstance(caught.value, TimeoutError)


def test_a_timeout_of_the_environments_own_is_its_error():
    limits = RolloutLimits(rollout_timeout_seconds=60, sampling_turn_timeout_seconds=60)
    with pytest.raises(TimeoutError, match="no sandbox"):
        play(Policy(), Raises(error=TimeoutError("no sandbox")), limits=limits)


# --- hooks ------------------------------------------------------------------------------------------------


class Records(RolloutHooks):
    def __init__(self):
        self.events: list[Any] = []

    async def on_turn_begin(self, state):
        self.events.append(("turn", state.turn_index, state.observation_tokens, state.sampled_tokens))

    async def on_stop_reason(self, reason, state):
        self.events.append(("stop", reason))
        return reason

    async def on_grade(self, state):
        self.events.append("grade")

    async def on_artifacts(self, state):
        self.events.append("artifacts")


def test_hooks_come_in_order_and_only_an_end_of_the_environment_is_graded():
    hooks = Records()
    play(Policy(), Turns(turns=2), hooks=hooks)
    assert hooks.events == [
        ("turn", 0, 4, 0),
        ("turn", 1, 7, 2),
        ("stop", "completed"),
        "grade",
        "artifacts",
    ]
    hooks = Records()
    play(Policy(), Turns(turns=2), hooks=hooks, limits=RolloutLimits(max_turns=1))
    assert hooks.events == [("turn", 0, 4, 0), ("stop", "max_turns"), "artifacts"]


class Rewrites(RolloutHooks):
    def __init__(self, answers: list[str | None]):
        self.answers = answers

    async def on_stop_reason(self, reason, state):
        return self.answers.pop(0)


def test_a_hook_can_take_an_end_back_and_rename_the_next():
    trajectory = play(Policy(), Turns(turns=1), hooks=Rewrites([None, "tired"]))
    assert stops(trajectory) == [[], ["stop/tired"]]
    assert [turn.episode_done for turn in trajectory.transitions] == [False, True]
    assert trajectory.stop_reason == "tired"


def test_a_budget_that_a_hook_cleared_caps_nothing():
    policy = Policy(tokens=3)
    limits = RolloutLimits(max_trajectory_tokens=4, max_sampled_tokens=50)
    trajectory = play(policy, Turns(), limits=limits, hooks=Clears("max_tokens"))
    assert policy.asked == [{"length": 4, "max_tokens": 50}]
    assert trajectory.stop_reason == "completed"


class Injects(RolloutHooks):
    async def on_turn_begin(self, state):
        return [Message(role="user", content="hurry")] if state.turn_index == 0 else None


class Injectable(Turns):
    async def inject_messages(self, messages):
        self.messages = messages
        return prompt(20), ["!"]


def test_injected_messages_count_in_the_same_turn():
    policy, env = Policy(), Injectable()
    trajectory = play(policy, env, hooks=Injects(), limits=RolloutLimits(max_trajectory_tokens=21))
    assert trajectory.stop_reason == "max_tokens"
    assert env.messages == [Message(role="user", content="hurry")]
    assert policy.asked == []
    assert trajectory.final_ob.length == 20


def test_an_environment_without_injection_says_so():
    with pytest.raises(TypeError, match="message injection"):
        play(Policy(), Turns(), hooks=Injects())


# --- environments that misbehave --------------------------------------------------------------------------


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, None, "1.0", [1.0]])
def test_a_reward_that_is_no_finite_number_names_the_environment_and_the_turn(reward):
    with pytest.raises(EnvError, match=r"turn 1 of Turns gave the reward .*finite number"):
        play(Policy(), Turns(turns=2, reward=reward))


def test_rewards_of_other_number_types_are_taken():
    import numpy as np

    for reward in (True, 1, np.float32(1.0), np.int64(1)):
        found = play(Policy(), Turns(reward=reward)).transitions[-1].reward
        assert (found, type(found)) == (1.0, float)


def test_an_empty_observation_is_refused_before_it_is_sampled_from():
    policy = Policy()
    with pytest.raises(EnvError, match="Turns gave an empty observation for turn 0"):
        play(policy, Turns(start=0))
    with pytest.raises(EnvError, match=r"empty observation for turn 1.*episode_done"):
        play(policy, Turns(turns=2, start=3, growth=-3))
    assert len(policy.asked) == 1


def test_an_error_of_the_environment_comes_through_as_it_is():
    error = RuntimeError("x")
    with pytest.raises(RuntimeError) as caught:
        play(Policy(), Raises(error=error))
    assert caught.value is error


class Sampler:
    async def sample_async(self, **asked):
        raise AssertionError("nothing is to be sampled")


class SmallWindow(Policy):
    async def __call__(self, model_input, stop, **keywords):
        if model_input.length > 6:
            raise ContextWindowExceededError("exceeds context window")
        return await super().__call__(model_input, stop, **keywords)


def test_an_observation_longer_than_the_context_ends_the_episode_and_its_rewards_stand():
    trajectory = play(SmallWindow(), Turns(turns=3))
    assert trajectory.stop_reason == "context_overflow"
    assert stops(trajectory) == [["stop/context_overflow"]]
    assert trajectory.final_ob.length == 7
    at_once = TinkerTokenCompleter(Sampler(), 5, context_window=3)  # pyright: ignore[reportArgumentType]
    assert play(at_once, Turns()).stop_reason == "context_overflow"


class Overflows(Turns):
    async def initial_observation(self):
        return InitialObservationOverflow(-0.5, {"stop/context_overflow": 1.0}, {"length": 9000})


def test_a_first_observation_that_is_too_long_ends_the_episode_before_it_began():
    policy, hooks = Policy(), Records()
    trajectory = play(policy, Overflows(), hooks=hooks)
    (only,) = trajectory.transitions
    assert (only.reward, only.episode_done, only.logs) == (-0.5, True, {"length": 9000})
    assert only.ac == TokensWithLogprobs([], [])
    assert trajectory.stop_reason == "context_overflow"
    assert trajectory.final_ob.length == 0
    assert policy.asked == hooks.events == []


def test_cancelling_is_not_caught():
    async def main() -> None:
        task = asyncio.create_task(
            run_rollout(Policy(), Hangs(), limits=RolloutLimits(rollout_timeout_seconds=60))
        )
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_an_image_counts_by_its_tokens():
    image = tinker.types.ImageChunk(data=b"x", format="png", expected_tokens=9)
    env = Turns()

    async def first():
        return tinker.ModelInput(chunks=[image, tinker.EncodedTextChunk(tokens=[1])]), ["."]

    env.initial_observation = first  # pyright: ignore[reportAttributeAccessIssue]
    policy = Policy()
    play(policy, env, limits=RolloutLimits(max_trajectory_tokens=15))
    assert policy.asked == [{"length": 10, "max_tokens": 5}]
