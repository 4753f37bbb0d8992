"""What becomes of a group when one of its rollouts fails: the run ends, the rollout is tried again, or it is left out.

Trajectories come in the order of the group's members, whichever ended first: the same seeds give the same batch. A
repeated rollout takes the place of the one that failed.
"""

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from tinker_cookbook.completers import TokenCompleter
from tinker_cookbook.exceptions import AllTrajectoriesFailedError, ConfigurationError, EnvError
from tinker_cookbook.rl.first_turn import episode_is_over, policies_of_group
from tinker_cookbook.rl.rollout_cleanup import end_tasks, release
from tinker_cookbook.rl.rollout_runner import run_rollout
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, RolloutError, Trajectory

logger = logging.getLogger(__name__)

_VIABLE_FRACTION = 0.75


@dataclass(frozen=True)
class RolloutResult:
    """The episodes of a group that came to an end, and the errors of the others."""

    trajectories: list[Trajectory]
    envs: Sequence[Env]  # of the trajectories, one by one; whoever asked for the result releases them
    errors: list[RolloutError]


class RolloutStrategy(ABC):
    """Must survive `pickle`: rollouts may run in other processes."""

    @property
    def catches_group_errors(self) -> bool:
        """An error of a whole group costs the group and not the run."""
        return False

    @abstractmethod
    async def execute(self, env_group_builder: EnvGroupBuilder, policy: TokenCompleter) -> RolloutResult: ...


@dataclass(frozen=True)
class FailFast(RolloutStrategy):
    """The first error is raised and ends the other rollouts of the group."""

    async def execute(self, env_group_builder: EnvGroupBuilder, policy: TokenCompleter) -> RolloutResult:
        return await _run_whole_group(env_group_builder, policy)


class _Tolerant(RolloutStrategy):
    """Tries a failed rollout again as long as the group lacks some and retries are left, which all members share."""

    max_retries: int
    per_rollout_timeout: float | None

    def __post_init__(self) -> None:
        if self.max_retries < 0:
            raise ConfigurationError(f"max_retries must be 0 or more, got {self.max_retries}")
        if self.per_rollout_timeout is not None and not self.per_rollout_timeout >= 0:
            raise ConfigurationError(f"per_rollout_timeout must be above 0, got {self.per_rollout_timeout}")

    @property
    def catches_group_errors(self) -> bool:
        return True

    @abstractmethod
    def _needed(self, group_size: int) -> int:
        """Rollouts without which the group is of no use."""

    @abstractmethod
    def _give_up(self, error: Exception) -> None:
        """No retries are left after `error`: raise it, or go on without that rollout."""

    async def execute(self, env_group_builder: EnvGroupBuilder, policy: TokenCompleter) -> RolloutResult:
        if env_group_builder.members_play_together:
            return await self._retry_together(env_group_builder, policy)
        return await self._retry_singly(env_group_builder, policy)

    async def _retry_singly(self, builder: EnvGroupBuilder, policy: TokenCompleter) -> RolloutResult:
        envs = await _make_envs(builder)
        needed, retries = self._needed(len(envs)), 0
        async with _Episodes(policy, self.per_rollout_timeout) as episodes:
            episodes.start_group(envs)
            while episodes.running:
                for slot, error in await episodes.wait_for_some():
                    if len(episodes.finished) >= needed:
                        continue
                    if retries == self.max_retries:
                        self._give_up(error)
                        continue
                    episodes.start_again(slot, await builder.make_env(slot), index=len(envs) + retries)
                    retries += 1
            if len(episodes.finished) < needed:
                raise AllTrajectoriesFailedError(
                    f"{len(episodes.finished)}/{len(envs)} rollouts of {type(builder).__name__} came to an end, below "
                    f"the minimum viable group size {needed}; the last error: {episodes.errors[-1]}"
                )
        return episodes.result()

    async def _retry_together(self, builder: EnvGroupBuilder, policy: TokenCompleter) -> RolloutResult:
        """A new environment alone would wait for partners that never come, and a game without one is no game."""
        errors: list[RolloutError] = []
        while True:
            try:
                result = await _run_whole_group(
                    builder, policy, attempt=len(errors), timeout=self.per_rollout_timeout
                )
            except Exception as error:
                errors.append(_as_data(error))
                if len(errors) > self.max_retries:
                    _with_errors(error, errors)
                    raise
            else:
                return RolloutResult(result.trajectories, result.envs, errors)


@dataclass(frozen=True)
class RetryOnFailure(_Tolerant):
    """Every rollout must come to an end, if need be at another try; when the tries are used up, the error is raised."""

    max_retries: int = 3  # of the whole group
    per_rollout_timeout: float | None = 0  # seconds; 0 for no limit

    def _needed(self, group_size: int) -> int:
        return group_size

    def _give_up(self, error: Exception) -> None:
        raise error


@dataclass(frozen=True)
class MinViableGroup(_Tolerant):
    """Most rollouts must come to an end; the group goes on without the others."""

    min_successful: int | None = None  # None: three quarters of the group, rounded up
    max_retries: int = 3  # of the whole group
    per_rollout_timeout: float | None = None  # seconds

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_successful is not None and self.min_successful < 1:
            raise ConfigurationError(f"min_successful must be at least 1, got {self.min_successful}")

    def _needed(self, group_size: int) -> int:
        return self.min_successful or math.ceil(_VIABLE_FRACTION * group_size)

    def _give_up(self, error: Exception) -> None:
        """The others may still be enough."""


def rollout_strategy_from_config(rollout_error_tolerance: bool | RolloutStrategy) -> RolloutStrategy:
    """The strategy that a setting stands for: True, False, or a strategy itself."""
    if isinstance(rollout_error_tolerance, RolloutStrategy):
        return rollout_error_tolerance
    if isinstance(rollout_error_tolerance, bool):
        return RetryOnFailure() if rollout_error_tolerance else FailFast()
    raise ConfigurationError(
        "rollout_error_tolerance is False (any error ends the run), True (failed rollouts are tried again) or a "
        f"RolloutStrategy such as MinViableGroup(), not {rollout_error_tolerance!r}"
    )


# --- episodes that run at the same time -------------------------------------------------------------------


@dataclass
class _Episodes:
    """Left with an exception, also when cancelled, none runs on and no environment is kept."""

    policy: TokenCompleter
    timeout: float | None
    finished: dict[int, tuple[Trajectory, Env]] = field(default_factory=dict)  # by place in the group
    errors: list[RolloutError] = field(default_factory=list)
    running: dict[asyncio.Task[Trajectory], tuple[int, Env]] = field(default_factory=dict)

    async def __aenter__(self) -> "_Episodes":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object):
        if error is None:
            return
        if isinstance(error, Exception):
            _with_errors(error, self.errors)
        await end_tasks(self.running)
        await release(env for _, env in (*self.running.values(), *self.finished.values()))

    def start_group(self, envs: Sequence[Env], *, attempt: int = 0, together: bool = False) -> None:
        """`together`: they play one game, and the first move of one may come after those of others."""
        if together:
            policies = [_for_rollout(self.policy, attempt * len(envs) + slot) for slot in range(len(envs))]
        else:
            policies = policies_of_group(self.policy, len(envs), attempt=attempt)
        for slot, (env, policy) in enumerate(zip(envs, policies, strict=True)):
            self._start(slot, env, policy)

    def start_again(self, slot: int, env: Env, *, index: int) -> None:
        self._start(slot, env, _for_rollout(self.policy, index))

    def _start(self, slot: int, env: Env, policy: TokenCompleter) -> None:
        task = asyncio.create_task(_run_in_time(policy, env, self.timeout), name=f"rollout {slot}")
        self.running[task] = (slot, env)

    async def wait_for_some(self) -> list[tuple[int, Exception]]:
        """The places of rollouts that failed meanwhile, and why."""
        done, _ = await asyncio.wait(self.running, return_when=asyncio.FIRST_COMPLETED)
        failed: list[tuple[int, Exception]] = []
        for task in sorted(done, key=lambda task: self.running[task][0]):
            slot, env = self.running[task]
            error = task.exception()  # raises if the task was cancelled, which is not to be tolerated
            if error is None:
                self.finished[slot] = (task.result(), env)
            elif isinstance(error, Exception):
                logger.warning("a rollout of %s failed: %r", type(env).__name__, error)
                failed.append((slot, error))
                await release([env])
            else:
                raise error
            del self.running[task]
        self.errors += [_as_data(error) for _, error in failed]
        return failed

    def result(self) -> RolloutResult:
        pairs = [self.finished[slot] for slot in sorted(self.finished)]
        return RolloutResult(
            [trajectory for trajectory, _ in pairs], [env for _, env in pairs], list(self.errors)
        )


async def _run_whole_group(
    builder: EnvGroupBuilder, policy: TokenCompleter, *, attempt: int = 0, timeout: float | None = None
) -> RolloutResult:
    """All or, with the first error, none."""
    envs = await _make_envs(builder)
    async with _Episodes(policy, timeout) as episodes:
        episodes.start_group(envs, attempt=attempt, together=builder.members_play_together)
        while episodes.running:
            for _, error in await episodes.wait_for_some():
                raise error
    return episodes.result()


async def _make_envs(builder: EnvGroupBuilder) -> Sequence[Env]:
    envs = await builder.make_envs()
    if not envs:
        raise EnvError(
            f"{type(builder).__name__}.make_envs returned no environment; a group needs at least one"
        )
    return envs


def _for_rollout(policy: TokenCompleter, index: int) -> TokenCompleter:
    """Any callable of the right shape can be a policy."""
    return policy.for_rollout(index) if isinstance(policy, TokenCompleter) else policy


async def _run_in_time(policy: TokenCompleter, env: Env, seconds: float | None) -> Trajectory:
    timer = asyncio.timeout(seconds or None)
    try:
        async with timer:
            return await run_rollout(policy, env)
    except TimeoutError as error:
        if not timer.expired():
            raise
        raise TimeoutError(
            f"the rollout of {type(env).__name__} took longer than {seconds} s (per_rollout_timeout)"
        ) from error
    finally:
        episode_is_over(policy)


# --- errors as data ---------------------------------------------------------------------------------------


def _as_data(error: BaseException) -> RolloutError:
    return RolloutError(type(error).__name__, str(error))


def _with_errors(error: Exception, errors: list[RolloutError]) -> None:
    """The error that ends a group carries those of its members, to be counted."""
    vars(error)["rollout_errors"] = errors  # not setattr: an exception may be a frozen dataclass


def errors_of_group(error: Exception) -> list[RolloutError]:
    """Of a group that failed with `error`: those of its rollouts if there were any, else just that one."""
    return vars(error).get("rollout_errors") or [_as_data(error)]
