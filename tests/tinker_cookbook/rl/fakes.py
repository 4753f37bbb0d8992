"""A policy and environments of a few lines. Module level, so that they go through pickle."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tinker

from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.types import (
    Action,
    ActionExtra,
    Env,
    EnvGroupBuilder,
    InitialObservationOverflow,
    Metrics,
    Observation,
    StepResult,
    Trajectory,
)

FOREVER = asyncio.Event  # `await FOREVER().wait()` never returns


def prompt(length: int) -> Observation:
    return tinker.ModelInput.from_ints(list(range(length)))


@dataclass
class Policy(TokenCompleter):
    """Samples `tokens` tokens, or as many as it may, and keeps what it was asked."""

    tokens: int = 2
    stop_reason: tinker.StopReason = "stop"
    asked: list[dict[str, Any]] = field(default_factory=list)

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, **keywords: int
    ) -> TokensWithLogprobs:
        self.asked.append({"length": model_input.length, **keywords})
        tokens = min(self.tokens, keywords.get("max_tokens", self.tokens))
        return TokensWithLogprobs([7] * tokens, [-1.0] * tokens, self.stop_reason)


@dataclass
class Turns(Env):
    """Ends by itself after `turns` turns; each observation is `growth` tokens longer than the one before."""

    turns: int = 1
    start: int = 4
    growth: int = 3
    reward: Any = 1.0  # of the last turn
    metrics: Metrics = field(default_factory=lambda: {"stop/completed": 1.0})  # of the last turn
    taken: list[ActionExtra | None] = field(default_factory=list)
    cleanups: int = 0

    async def initial_observation(self) -> tuple[Observation, StopCondition] | InitialObservationOverflow:
        return prompt(self.start), ["."]

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        self.taken.append(extra)
        done = len(self.taken) >= self.turns
        ob = prompt(self.start + self.growth * len(self.taken))
        return StepResult(
            self.reward if done else 0.0, done, ob, ["."], dict(self.metrics) if done else {"a": 1}
        )

    async def cleanup(self) -> None:
        self.cleanups += 1


@dataclass
class Raises(Turns):
    error: BaseException = field(default_factory=lambda: RuntimeError("the env is broken"))

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        raise self.error


class Hangs(Turns):
    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        await FOREVER().wait()
        raise AssertionError


@dataclass
class Group(EnvGroupBuilder):
    """The first call of `make_envs` gives `envs`, later ones what `replacement` makes, as many."""

    envs: Sequence[Env]
    replacement: Callable[[], Env] = Turns
    rewards: list[Any] | None = None  # of compute_group_rewards
    made: list[Env] = field(default_factory=list)
    calls: int = 0
    gradings: int = 0
    cleanups: int = 0

    async def make_envs(self) -> Sequence[Env]:
        self.calls += 1
        envs = self.envs if self.calls == 1 else [self.replacement() for _ in self.envs]
        self.made += envs
        return envs

    async def compute_group_rewards(
        self, trajectory_group: list[Trajectory], env_group: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        self.gradings += 1
        if self.rewards is None:
            return await super().compute_group_rewards(trajectory_group, env_group)
        return [(reward, {}) for reward in self.rewards]

    async def cleanup(self) -> None:
        self.cleanups += 1

    @property
    def released(self) -> list[int]:
        return [env.cleanups for env in self.made if isinstance(env, Turns)]
