"""The data of reinforcement learning, and what users write: environments, groups of them, data sets of groups.

Suffixes of names: `_P` one per group (problem), `_G` one per member of a group, `_T` one per token, `_D` one per datum.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, TypeAlias, TypedDict

import chz
import tinker

from tinker_cookbook.completers import StopCondition, TokensWithLogprobs

Action: TypeAlias = list[int]
Observation: TypeAlias = tinker.ModelInput
Logprobs: TypeAlias = list[float]
Metrics: TypeAlias = dict[str, float | int]
Logs: TypeAlias = dict[str, str | int | float]


class StopReason(StrEnum):
    """Why an episode ended. An environment may use words of its own besides."""

    COMPLETED = "completed"
    TOOL_STOPPED = "tool_stopped"
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    MAX_SAMPLED_TOKENS = "max_sampled_tokens"
    MAX_TOOL_CALLS = "max_tool_calls"
    CONTEXT_OVERFLOW = "context_overflow"
    PARSE_ERROR = "parse_error"
    ROLLOUT_TIMEOUT = "rollout_timeout"


STOP_METRIC_PREFIX = "stop/"
"""An environment says why it ended by the metric `stop/<reason>` = 1.0 of its last transition."""

PARSE_ERROR_MASKED_METRIC_KEY = "parse_error_masked"
"""A transition with this metric is kept out of the loss."""


# --- an episode -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InitialObservationOverflow:
    """The first observation was too long to sample from: the episode ends before it began."""

    reward: float
    metrics: Metrics = field(default_factory=dict)
    logs: Logs = field(default_factory=dict)


@dataclass
class StepResult:
    """What an environment makes of an action."""

    reward: float
    episode_done: bool
    next_observation: Observation
    next_stop_condition: StopCondition
    metrics: Metrics = field(default_factory=dict)  # numbers, averaged over episodes
    logs: Logs = field(default_factory=dict)  # for people to read, never averaged


@dataclass
class Transition:
    """One action, what it was an answer to, and what came of it."""

    ob: Observation
    ac: TokensWithLogprobs
    reward: float
    episode_done: bool
    metrics: Metrics = field(default_factory=dict)
    logs: Logs = field(default_factory=dict)


class ActionExtra(TypedDict, total=False):
    """What is known about an action besides its tokens."""

    stop_reason: tinker.StopReason  # "length" if it was cut off


class Env(ABC):
    """One episode; not used again."""

    @abstractmethod
    async def initial_observation(self) -> tuple[Observation, StopCondition] | InitialObservationOverflow:
        """The tokens that the first action goes on from, and where it stops."""

    @abstractmethod
    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        """What an action was worth, and what comes next."""

    async def cleanup(self) -> None:  # noqa: B027  most have nothing to clean up
        """Called when nobody needs this episode any more: at once if it failed, else after grading. Must not raise."""


@dataclass(frozen=True)
class Trajectory:
    """One episode that was played."""

    transitions: list[Transition]
    final_ob: Observation
    stop_reason: str | None = None  # a StopReason or a word of the environment's own


@dataclass(frozen=True)
class RolloutError:
    """An episode that failed, as data: it is counted, and the others go on."""

    error_type: str
    error_message: str


# --- groups of episodes -----------------------------------------------------------------------------------


class EnvGroupBuilder(ABC):
    """Makes the environments of one group, whose rewards are compared with each other.

    Must survive `pickle`: rollouts may run in other processes.
    """

    members_play_together: ClassVar[bool] = False
    """The environments of a group share one game: if one fails, only the whole group can be tried again."""

    @abstractmethod
    async def make_envs(self) -> Sequence[Env]:
        """The members of the group, as many as are to be compared; new ones at each call."""

    async def make_env(self, index: int) -> Env:
        """In place of member `index`, which failed. Override it where environments are costly to make."""
        envs = await self.make_envs()
        for other in (*envs[:index], *envs[index + 1 :]):
            await other.cleanup()
        return envs[index]

    async def compute_group_rewards(
        self, trajectory_group: list[Trajectory], env_group: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        """A reward and metrics for each trajectory that only the whole group can give. None by default."""
        return [(0.0, {}) for _ in trajectory_group]

    async def cleanup(self) -> None:  # noqa: B027  most have nothing to clean up
        """Called after the rollouts, perhaps more than once and perhaps after a failure. Must not raise."""

    def logging_tags(self) -> list[str]:
        """Names under which the metrics of this group are also reported."""
        return []


@dataclass
class TrajectoryGroup:
    """The episodes of a group, with the rewards that only the whole group could give."""

    trajectories_G: list[Trajectory]
    final_rewards_G: list[float]
    metrics_G: list[Metrics]
    rollout_errors: list[RolloutError] = field(default_factory=list)

    def get_total_rewards(self) -> list[float]:
        """Of each trajectory: the rewards of its transitions and that of the group."""
        return [
            sum(transition.reward for transition in trajectory.transitions) + final_reward
            for trajectory, final_reward in zip(self.trajectories_G, self.final_rewards_G, strict=True)
        ]


# --- data sets --------------------------------------------------------------------------------------------


class RLDataset(ABC):
    """Batches of groups, by index. One pass: whoever wants epochs returns a batch again under a later index."""

    @abstractmethod
    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        """The groups of a step. The same index must give the same groups: resuming depends on it."""

    @abstractmethod
    def __len__(self) -> int: ...


@chz.chz
class RLDatasetBuilder(ABC):
    """The configuration of a data set; calling it builds the one to train on and, if there is one, that to test on."""

    @abstractmethod
    async def __call__(self) -> tuple[RLDataset, RLDataset | None]: ...
