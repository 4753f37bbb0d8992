"""The one rollout loop: a policy plays one episode of an environment, within limits.

Training, evaluation and benchmarks all use it, so that a limit means the same everywhere.
"""

import asyncio
import logging
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import tinker

from tinker_cookbook.completers import (
    ContextWindowExceededError,
    StopCondition,
    TokenCompleter,
    TokensWithLogprobs,
)
from tinker_cookbook.exceptions import EnvError
from tinker_cookbook.renderers.messages import Message
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, RolloutLimits
from tinker_cookbook.rl.types import (
    STOP_METRIC_PREFIX,
    Env,
    InitialObservationOverflow,
    Metrics,
    Observation,
    StepResult,
    StopReason,
    Trajectory,
    Transition,
)
from tinker_cookbook.utils.trace import scope_span

if TYPE_CHECKING:
    from tinker_cookbook.rl.rollout_presets import RolloutConfig

logger = logging.getLogger(__name__)

TRUNCATION_METRIC_KEY = "num_truncations_max_turn_tokens"
"""Turns that were cut off and after which the episode went on; on the last transition, if there were any."""


class SamplingTurnTimeoutError(Exception):
    """The policy took longer than `sampling_turn_timeout_seconds`. No TimeoutError: those end a rollout gracefully."""


# --- what an environment can have besides -----------------------------------------------------------------


@runtime_checkable
class SupportsToolCallLimit(Protocol):
    """An environment that counts calls of tools, and can be given a limit."""

    def set_max_tool_calls(self, max_tool_calls: int) -> None: ...


@runtime_checkable
class SupportsParseErrorPolicy(Protocol):
    """An environment that can be told what a malformed message leads to."""

    def set_parse_error_policy(self, policy: ParseErrorPolicy) -> None: ...


@runtime_checkable
class SupportsMessageInjection(Protocol):
    async def inject_messages(self, messages: list[Message]) -> tuple[Observation, StopCondition]: ...


# --- hooks ------------------------------------------------------------------------------------------------


@dataclass
class RolloutState:
    """How far a rollout is, for hooks."""

    turn_index: int
    observation_tokens: int  # of the next prompt
    sampled_tokens: int  # so far, in the whole episode
    num_length_truncations: int
    elapsed_seconds: float
    transitions: list[Transition]  # the rollout's own: what a hook changes here is changed


class RolloutHooks(Protocol):
    """Called while a rollout runs. Derive from it: what is not defined does nothing."""

    async def on_turn_begin(self, state: RolloutState) -> list[Message] | None:
        """Messages to put into the conversation before this turn."""
        return None

    async def on_stop_reason(self, reason: str, state: RolloutState) -> str | None:
        """The reason to stop for; None to go on."""
        return reason

    async def on_grade(self, state: RolloutState) -> None:
        """After an end that the environment declared."""

    async def on_artifacts(self, state: RolloutState) -> None:
        """After every end, last of all."""


class _NoHooks(RolloutHooks):
    pass


# --- rewards and stop reasons -----------------------------------------------------------------------------


def stop_reason_from_metrics(metrics: Metrics) -> str | None:
    """What `stop/<reason>` of a transition says; None without one."""
    keys = (key for key in metrics if key.startswith(STOP_METRIC_PREFIX))
    return next((key.removeprefix(STOP_METRIC_PREFIX) for key in keys), None)


def _with_stop_reason(metrics: Metrics, reason: str | None) -> Metrics:
    """With exactly this reason; with None, without any."""
    others = {key: value for key, value in metrics.items() if not key.startswith(STOP_METRIC_PREFIX)}
    return others if reason is None else {**others, f"{STOP_METRIC_PREFIX}{reason}": 1.0}


def checked_reward(reward: Any, source: str) -> float:
    """A finite number: one NaN would make the advantages of its whole group NaN."""
    if not isinstance(reward, Real) or not math.isfinite(reward):
        raise EnvError(
            f"{source} gave the reward {reward!r} ({type(reward).__name__}); a reward is a finite number"
        )
    return float(reward)


# --- the rollout ------------------------------------------------------------------------------------------


async def run_rollout(
    policy: TokenCompleter,
    env: Env,
    *,
    limits: RolloutLimits | None = None,
    hooks: RolloutHooks | None = None,
    parse_errors: ParseErrorPolicy | None = None,
    config: "RolloutConfig | None" = None,
) -> Trajectory:
    """`limits` and `parse_errors` come before those of `config`, and `config` before `env.rollout_limits`."""
    if config is not None:
        limits = limits or config.limits
        parse_errors = parse_errors or config.parse_errors
    effective: RolloutLimits = limits or getattr(env, "rollout_limits", None) or RolloutLimits()
    _hand_over(env, effective, parse_errors)
    return await _Rollout(policy, env, effective, hooks or _NoHooks()).run()


def _hand_over(env: Env, limits: RolloutLimits, parse_errors: ParseErrorPolicy | None) -> None:
    """What only the environment can see to."""
    if limits.max_tool_calls is not None:
        if isinstance(env, SupportsToolCallLimit):
            env.set_max_tool_calls(limits.max_tool_calls)
        else:
            _warn_of_missing(env, "set_max_tool_calls", "max_tool_calls")
    if parse_errors is not None:
        if isinstance(env, SupportsParseErrorPolicy):
            env.set_parse_error_policy(parse_errors)
        else:
            _warn_of_missing(env, "set_parse_error_policy", "the parse error policy")


def _warn_of_missing(env: Env, method: str, setting: str) -> None:
    logger.warning("%s has no method %s: %s has no effect on it", type(env).__name__, method, setting)


class _Rollout:
    """One episode in progress: `ob` and `stop` are what the policy is asked next."""

    def __init__(self, policy: TokenCompleter, env: Env, limits: RolloutLimits, hooks: RolloutHooks):
        self.policy = policy
        self.env = env
        self.limits = limits
        self.hooks = hooks
        self.ob: Observation = tinker.ModelInput.empty()
        self.stop: StopCondition = []
        self.transitions: list[Transition] = []
        self.sampled_tokens = 0
        self.truncations = 0
        self.started = time.monotonic()
        self.timer = asyncio.timeout(limits.rollout_timeout_seconds)

    async def run(self) -> Trajectory:
        imposed = await self._play_in_time()
        if imposed is not None:
            self._end_because(imposed)
        self._note_truncations()
        if imposed is None:
            await self.hooks.on_grade(self._state())
        await self.hooks.on_artifacts(self._state())
        reason = stop_reason_from_metrics(self.transitions[-1].metrics)
        return Trajectory(self.transitions, self.ob, reason)

    async def _play_in_time(self) -> str | None:
        """The reason to stop, if it was not the environment that ended the episode."""
        try:
            async with self.timer:
                return await self._play()
        except TimeoutError:
            if not self.timer.expired():  # the environment's own
                raise
            return StopReason.ROLLOUT_TIMEOUT

    async def _play(self) -> str | None:
        await self._begin()
        while not (self.transitions and self.transitions[-1].episode_done):
            imposed = await self._turn()
            if imposed is not None:
                return imposed
        return None

    async def _begin(self) -> None:
        async with scope_span("env_initial_observation"):
            first = await self.env.initial_observation()
        if not isinstance(first, InitialObservationOverflow):
            self.ob, self.stop = first
            return
        self.hooks = _NoHooks()  # nothing was played that they could look at
        reward = checked_reward(first.reward, f"the first observation of {type(self.env).__name__}")
        self._append_synthetic(reward, dict(first.metrics))
        self.transitions[-1].logs = dict(first.logs)

    async def _turn(self) -> str | None:
        reason = await self._first_upheld(self._limits_reached())
        if reason is not None:
            return reason
        await self._inject()
        self._check_observation()
        reason = await self._first_upheld(self._budgets_spent())
        if reason is not None:
            return reason
        try:
            action = await self._sample()
        except ContextWindowExceededError as error:
            logger.debug("%s stops: %s", type(self.env).__name__, error)
            return StopReason.CONTEXT_OVERFLOW
        await self._step(action)
        await self._confirm_end()
        return None

    # --- before sampling

    def _limits_reached(self) -> Iterable[str]:
        timeout = self.limits.rollout_timeout_seconds
        if timeout is not None and self._elapsed() >= timeout:
            if not self.timer.expired():
                self.timer.reschedule(None)  # from here on the hook decides, also if it takes a while
            yield StopReason.ROLLOUT_TIMEOUT
        if self.limits.max_turns is not None and len(self.transitions) >= self.limits.max_turns:
            yield StopReason.MAX_TURNS

    def _budgets_spent(self) -> Iterable[str]:
        if _is_spent(self._trajectory_remainder()):
            yield StopReason.MAX_TOKENS
        if _is_spent(self._sampled_remainder()):
            yield StopReason.MAX_SAMPLED_TOKENS

    async def _first_upheld(self, reasons: Iterable[str]) -> str | None:
        """The first reason that the hook does not clear."""
        for reason in reasons:
            upheld = await self.hooks.on_stop_reason(reason, self._state())
            if upheld is not None:
                return upheld
        return None

    async def _inject(self) -> None:
        """Before budgets are looked at: what is injected counts."""
        messages = await self.hooks.on_turn_begin(self._state())
        if not messages:
            return
        if not isinstance(self.env, SupportsMessageInjection):
            raise TypeError(
                f"{type(self.env).__name__} does not support message injection: give it an async method "
                "inject_messages(messages) that returns the new observation and stop condition"
            )
        self.ob, self.stop = await self.env.inject_messages(list(messages))

    def _check_observation(self) -> None:
        if self.ob.length == 0:
            raise EnvError(
                f"{type(self.env).__name__} gave an empty observation for turn {len(self.transitions)}: there is "
                "nothing to sample from. If the episode was over, set episode_done"
            )

    def _trajectory_remainder(self) -> int | None:
        limit = self.limits.max_trajectory_tokens
        return None if limit is None else limit - self.ob.length

    def _sampled_remainder(self) -> int | None:
        limit = self.limits.max_sampled_tokens
        return None if limit is None else limit - self.sampled_tokens

    # --- a turn

    async def _sample(self) -> TokensWithLogprobs:
        remainders = (self._trajectory_remainder(), self._sampled_remainder())
        caps = [self.limits.max_turn_tokens, *(left for left in remainders if not _is_spent(left))]
        given = [cap for cap in caps if cap is not None]
        # A policy need not know the keyword as long as nothing is limited.
        keywords = {"max_tokens": min(given)} if given else {}
        seconds = self.limits.sampling_turn_timeout_seconds
        timer = asyncio.timeout(seconds)
        try:
            async with scope_span("policy_sample"), timer:
                return await self.policy(self.ob, self.stop, **keywords)
        except TimeoutError as error:
            if not timer.expired():
                raise
            raise SamplingTurnTimeoutError(
                f"the policy took longer than {seconds} s (sampling_turn_timeout_seconds) for turn "
                f"{len(self.transitions)} of {type(self.env).__name__}"
            ) from error

    async def _step(self, action: TokensWithLogprobs) -> None:
        async with scope_span("env_step"):
            step = await self.env.step(action.tokens, extra={"stop_reason": action.stop_reason})
        self.transitions.append(self._transition(action, step))
        self.sampled_tokens += len(action.tokens)
        self.ob, self.stop = step.next_observation, step.next_stop_condition
        if action.stop_reason == "length" and not step.episode_done:
            self.truncations += 1

    def _transition(self, action: TokensWithLogprobs, step: StepResult) -> Transition:
        reward = checked_reward(step.reward, f"turn {len(self.transitions)} of {type(self.env).__name__}")
        return Transition(self.ob, action, reward, step.episode_done, step.metrics, step.logs)

    async def _confirm_end(self) -> None:
        """An end that the environment declared can be renamed or taken back by the hook."""
        last = self.transitions[-1]
        reason = stop_reason_from_metrics(last.metrics)
        if not last.episode_done or reason is None:
            return
        upheld = await self.hooks.on_stop_reason(reason, self._state())
        if upheld != reason:
            last.episode_done = upheld is not None
            last.metrics = _with_stop_reason(last.metrics, upheld)

    # --- the end

    def _end_because(self, reason: str) -> None:
        """An end that the environment does not know of: its grader never runs, the rewards so far stand."""
        if not self.transitions:
            self._append_synthetic(0.0, {})
        last = self.transitions[-1]
        metrics = _with_stop_reason(last.metrics, reason)
        self.transitions[-1] = replace(last, episode_done=True, metrics=metrics)

    def _append_synthetic(self, reward: float, metrics: Metrics) -> None:
        """A transition without tokens, so that an episode of no turns has a reward and metrics."""
        nothing = TokensWithLogprobs([], [])
        self.transitions.append(Transition(tinker.ModelInput.empty(), nothing, reward, True, metrics))

    def _note_truncations(self) -> None:
        if self.truncations:
            last = self.transitions[-1]
            metrics = {**last.metrics, TRUNCATION_METRIC_KEY: float(self.truncations)}
            self.transitions[-1] = replace(last, metrics=metrics)

    def _elapsed(self) -> float:
        return time.monotonic() - self.started

    def _state(self) -> RolloutState:
        return RolloutState(
            turn_index=len(self.transitions),
            observation_tokens=self.ob.length,
            sampled_tokens=self.sampled_tokens,
            num_length_truncations=self.truncations,
            elapsed_seconds=self._elapsed(),
            transitions=self.transitions,
        )


def _is_spent(remainder: int | None) -> bool:
    """One token is not worth a turn: it could only be the end of one."""
    return remainder is not None and remainder <= 1
