"""Rollouts of groups: play, grade, clamp. In this process or, with an executor, in others."""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import tinker

from tinker_cookbook.completers import TinkerTokenCompleter, TokenCompleter
from tinker_cookbook.exceptions import AllTrajectoriesFailedError, EnvError, TrainingError
from tinker_cookbook.rl.rollout_cleanup import cleaned_up, release
from tinker_cookbook.rl.rollout_executor import get_rollout_executor, run_elsewhere, set_rollout_executor
from tinker_cookbook.rl.rollout_limits import TerminationRewardPolicy
from tinker_cookbook.rl.rollout_runner import checked_reward, run_rollout
from tinker_cookbook.rl.rollout_strategy import FailFast, RolloutResult, RolloutStrategy, errors_of_group
from tinker_cookbook.rl.types import (
    Env,
    EnvGroupBuilder,
    Metrics,
    RolloutError,
    StopReason,
    Trajectory,
    TrajectoryGroup,
)
from tinker_cookbook.utils import logtree
from tinker_cookbook.utils.misc_utils import all_same
from tinker_cookbook.utils.trace import scope, scope_span

__all__ = [
    "FailedGroup",
    "RolloutErrorCounter",
    "RolloutRequest",
    "do_group_rollout",
    "do_group_rollout_and_filter_constant_reward",
    "do_single_rollout",
    "get_rollout_executor",
    "run_group_rollout",
    "set_rollout_executor",
]

logger = logging.getLogger(__name__)

ZERO_REWARD_METRIC_KEY = "zero_reward_on_limit"
"""On trajectories whose reward was taken away because a limit ended them."""


async def do_single_rollout(policy: TokenCompleter, env: Env) -> Trajectory:
    """One episode, from its first observation to its end."""
    return await run_rollout(policy, env)


# --- a group ----------------------------------------------------------------------------------------------


@scope
async def do_group_rollout(
    env_group_builder: EnvGroupBuilder,
    policy: TokenCompleter,
    strategy: RolloutStrategy | None = None,
    termination: TerminationRewardPolicy | None = None,
) -> TrajectoryGroup:
    """Without a `strategy` the first error is raised; without `termination` rewards stand whatever ended an episode."""
    termination = termination or TerminationRewardPolicy()
    async with cleaned_up(env_group_builder):
        result = await (strategy or FailFast()).execute(env_group_builder, policy)
        try:
            graded_G = await _grade(env_group_builder, result, termination)
        finally:
            await release(result.envs)
    group = TrajectoryGroup(
        trajectories_G=result.trajectories,
        final_rewards_G=[reward for reward, _ in graded_G],
        metrics_G=[metrics for _, metrics in graded_G],
        rollout_errors=result.errors,
    )
    _clamp_at_limits(group, termination)
    _log_group(group)
    return group


async def _grade(
    builder: EnvGroupBuilder, result: RolloutResult, termination: TerminationRewardPolicy
) -> list[tuple[float, Metrics]]:
    if _grading_is_pointless(result.trajectories, termination):
        return [(0.0, {}) for _ in result.trajectories]
    seconds = termination.grader_timeout_seconds
    timer = asyncio.timeout(seconds)
    grader = f"{type(builder).__name__}.compute_group_rewards"
    try:
        async with scope_span("compute_group_rewards"), timer:
            graded_G = await builder.compute_group_rewards(result.trajectories, result.envs)
    except TimeoutError as error:
        if not timer.expired():
            raise
        raise TimeoutError(f"{grader} took longer than {seconds} s (grader_timeout_seconds)") from error
    return _checked_rewards(graded_G, len(result.trajectories), grader)


def _grading_is_pointless(trajectories: Sequence[Trajectory], termination: TerminationRewardPolicy) -> bool:
    """Every member ran out of time, for which any reward would be taken away again."""
    return (
        termination.skip_grading_on_timeout
        and termination.zero_reward_on_limit
        and StopReason.ROLLOUT_TIMEOUT in termination.limit_stop_reasons
        and len(trajectories) > 0
        and all(trajectory.stop_reason == StopReason.ROLLOUT_TIMEOUT for trajectory in trajectories)
    )


def _checked_rewards(
    graded_G: Sequence[tuple[float, Metrics]], group_size: int, grader: str
) -> list[tuple[float, Metrics]]:
    if len(graded_G) != group_size:
        raise EnvError(f"{grader} gave {len(graded_G)} rewards for {group_size} trajectories")
    return [
        (checked_reward(reward, f"{grader}, for trajectory {index},"), dict(metrics))
        for index, (reward, metrics) in enumerate(graded_G)
    ]


def _clamp_at_limits(group: TrajectoryGroup, termination: TerminationRewardPolicy) -> None:
    """What a limit ended earns nothing; what it lost stays lost."""
    if not termination.zero_reward_on_limit:
        return
    for index, total in enumerate(group.get_total_rewards()):
        trajectory = group.trajectories_G[index]
        if trajectory.stop_reason in termination.limit_stop_reasons and total > 0:
            group.final_rewards_G[index] = -sum(transition.reward for transition in trajectory.transitions)
            group.metrics_G[index][ZERO_REWARD_METRIC_KEY] = 1.0


def _log_group(group: TrajectoryGroup) -> None:
    rows = [
        {
            "trajectory": index,
            "turns": len(trajectory.transitions),
            "sampled tokens": sum(len(transition.ac.tokens) for transition in trajectory.transitions),
            "stop": trajectory.stop_reason or "",
            "reward of steps": sum(transition.reward for transition in trajectory.transitions),
            "reward of group": group.final_rewards_G[index],
            "total": total,
        }
        for index, (trajectory, total) in enumerate(
            zip(group.trajectories_G, group.get_total_rewards(), strict=True)
        )
    ]
    logtree.table(rows, caption="Trajectories")
    for error in group.rollout_errors:
        logtree.log_text(f"A rollout failed: {error.error_type}: {error.error_message}")


# --- groups as the training loop asks for them ------------------------------------------------------------


@dataclass(frozen=True)
class RolloutRequest:
    """All that a group needs to be played anywhere. Goes through `pickle` if its builder does."""

    sampling_client: tinker.SamplingClient
    env_group_builder: EnvGroupBuilder
    max_tokens: int  # of each completion
    temperature: float
    seed: int | None = None  # of all the group samples
    context_window: int | None = None  # of prompt and completion together
    strategy: RolloutStrategy = field(default_factory=FailFast)
    termination: TerminationRewardPolicy | None = None
    enable_logging: bool = True  # into the current logtree scope
    timeout_seconds: float = 0.0  # of the whole group; 0 for no limit
    name: str = "a group"  # in messages

    def policy(self) -> TinkerTokenCompleter:
        return TinkerTokenCompleter(
            self.sampling_client, self.max_tokens, self.temperature, self.context_window, self.seed
        )


@dataclass(frozen=True)
class FailedGroup:
    """A group of which nothing came, and the strategy tolerates that."""

    errors: list[RolloutError]


async def run_group_rollout(request: RolloutRequest) -> TrajectoryGroup | FailedGroup:
    """Through the executor that was set, else here. Errors that the strategy does not tolerate are raised."""
    limit = asyncio.timeout(request.timeout_seconds or None)
    try:
        async with limit:
            return await _run_somewhere(request)
    except TimeoutError as error:
        if not limit.expired():
            raise
        return _took_too_long(request, error)


def _took_too_long(request: RolloutRequest, error: TimeoutError) -> FailedGroup:
    what = (
        f"{request.name} ({type(request.env_group_builder).__name__}) was not done after "
        f"group_timeout_seconds={request.timeout_seconds:g}: an environment or a grader hangs"
    )
    if request.strategy.catches_group_errors:
        return FailedGroup([RolloutError(type(error).__name__, what)])
    raise TrainingError(
        f"{what}. Give its episodes a limit (RolloutLimits.rollout_timeout_seconds), go on without such groups "
        "(rollout_error_tolerance=True), or raise the limit"
    ) from error


async def _run_somewhere(request: RolloutRequest) -> TrajectoryGroup | FailedGroup:
    executor = get_rollout_executor()
    with logtree.optional_enable_logging(request.enable_logging):
        if executor is None:
            return await _run_here(request)
        return await run_elsewhere(executor, _run_here, request)


async def _run_here(request: RolloutRequest) -> TrajectoryGroup | FailedGroup:
    try:
        return await do_group_rollout(
            request.env_group_builder, request.policy(), request.strategy, request.termination
        )
    except Exception as error:
        tolerated = request.strategy.catches_group_errors or isinstance(error, AllTrajectoriesFailedError)
        if not tolerated:
            raise
        name = type(request.env_group_builder).__name__
        logger.warning("a group of %s is left out: %r", name, error, exc_info=True)
        return FailedGroup(errors_of_group(error))


async def do_group_rollout_and_filter_constant_reward(
    sampling_client: tinker.SamplingClient,
    env_group_builder: EnvGroupBuilder,
    max_tokens: int,
    temperature: float,
    do_remove_constant_reward_groups: bool,
    enable_logging: bool = True,
    strategy: RolloutStrategy | None = None,
    termination: TerminationRewardPolicy | None = None,
) -> TrajectoryGroup | None:
    """None if nothing is to be learned from the group: it failed, or (if asked for) all its rewards are the same.

    `run_group_rollout` tells the two apart.
    """
    request = RolloutRequest(
        sampling_client,
        env_group_builder,
        max_tokens,
        temperature,
        strategy=strategy or FailFast(),
        termination=termination,
        enable_logging=enable_logging,
    )
    result = await run_group_rollout(request)
    if isinstance(result, FailedGroup):
        return None
    is_constant = all_same(result.get_total_rewards())
    return None if do_remove_constant_reward_groups and is_constant else result


# --- counting errors --------------------------------------------------------------------------------------


@dataclass
class RolloutErrorCounter:
    """Over some time. A group that is left out because all its rewards are the same is no error: keep it away."""

    counts: Counter[str] = field(default_factory=Counter)  # by type of error
    groups_skipped: int = 0

    def ingest(self, result: TrajectoryGroup | FailedGroup | None) -> None:
        if result is None or isinstance(result, FailedGroup):
            self.groups_skipped += 1
        if result is not None:
            errors = result.errors if isinstance(result, FailedGroup) else result.rollout_errors
            self.counts.update(error.error_type for error in errors)

    def get_metrics(self, prefix: str = "rollout_errors") -> dict[str, float]:
        """Empty until something happened."""
        if not self.counts and not self.groups_skipped:
            return {}
        return {
            **{f"{prefix}/{name}": float(count) for name, count in self.counts.items()},
            f"{prefix}/total": float(self.counts.total()),
            f"{prefix}/groups_skipped": float(self.groups_skipped),
        }
