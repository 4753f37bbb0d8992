"""One question, one answer, and a check of it."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tinker

from tinker_cookbook.completers import StopCondition
from tinker_cookbook.renderers import Message, Renderer
from tinker_cookbook.renderers.messages import get_text_content
from tinker_cookbook.rl.types import (
    Action,
    ActionExtra,
    Env,
    EnvGroupBuilder,
    Metrics,
    Observation,
    StepResult,
    Trajectory,
)
from tinker_cookbook.utils import logtree
from tinker_cookbook.utils.logtree_formatters import ConversationFormatter


class ProblemEnv(Env):
    """A subclass says what is asked and how an answer is checked; the text it gets is without the thinking.

    The reward is 1 for a right answer, less `format_coef` for one that has not the asked form. To have it, an answer
    must also have ended by the stop sequence; without `require_stop_sequence_for_format`, in any clean way.
    """

    partly_right = False  # whether there are scores between 0 and 1; they are then a metric of their own

    def __init__(
        self,
        renderer: Renderer,
        convo_prefix: list[Message] | None = None,
        format_coef: float = 0.1,
        require_stop_sequence_for_format: bool = True,
    ):
        self.renderer = renderer
        self.convo_prefix = convo_prefix or []
        self.format_coef = format_coef
        self.require_stop_sequence_for_format = require_stop_sequence_for_format

    @property
    def stop_condition(self) -> StopCondition:
        return self.renderer.get_stop_sequences()

    @abstractmethod
    def get_question(self) -> str:
        """What the user says, after `convo_prefix`."""

    @abstractmethod
    def check_answer(self, sample_str: str) -> bool:
        """Whether it is right: worth 1."""

    async def score(self, sample_str: str) -> float:
        """What the reward has for an answer: 1 if it is right, or with `partly_right` something between 0 and 1."""
        return float(self.check_answer(sample_str))

    @abstractmethod
    def check_format(self, sample_str: str) -> bool:
        """Whether it has the asked form, right or wrong."""

    @abstractmethod
    def get_reference_answer(self) -> str:
        """For people who read the report."""

    def get_prefill(self) -> str | None:
        """With what the answer begins, if that is not left to the model. It is no part of what is checked."""
        return None

    async def initial_observation(self) -> tuple[Observation, StopCondition]:
        prompt = self.renderer.build_generation_prompt(self._conversation(), prefill=self.get_prefill())
        return prompt, self.stop_condition

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        message, termination = self.renderer.parse_response(action)
        answer = get_text_content(message)
        strict = self.require_stop_sequence_for_format
        well_formed = termination.is_stop_sequence if strict else termination.is_clean
        score = await self.score(answer)
        metrics: Metrics = {
            "format": float(well_formed and self.check_format(answer)),
            "correct": float(score >= 1),
        }
        if self.partly_right:
            metrics["score"] = score
        reward = self.format_coef * (metrics["format"] - 1) + score
        self._report(message, reward, metrics)
        return StepResult(reward, True, tinker.ModelInput.empty(), self.stop_condition, metrics)

    def _conversation(self) -> list[Message]:
        return [*self.convo_prefix, Message(role="user", content=self.get_question())]

    def _report(self, message: Message, reward: float, metrics: Metrics) -> None:
        with logtree.scope_header("Prompt"):
            logtree.log_formatter(ConversationFormatter(self._conversation()))
        with logtree.scope_header("Policy Response"):
            logtree.log_formatter(ConversationFormatter([message]))
        with logtree.scope_header("Reward"):
            reference = {"reference answer": self.get_reference_answer(), "reward": f"{reward:.3f}"}
            logtree.table_from_dict(reference | {name: str(value) for name, value in metrics.items()})


class ScoredProblemEnv(ProblemEnv):
    """As a ProblemEnv whose answers take time to be scored: other episodes go on meanwhile."""

    @abstractmethod
    async def score(self, sample_str: str) -> float:
        """From 0 to 1."""


@dataclass(frozen=True)
class ProblemGroupBuilder(EnvGroupBuilder):
    """So many tries at one problem. For rollouts in other processes, `env_thunk` must survive `pickle`."""

    env_thunk: Callable[[], ProblemEnv]
    num_envs: int
    dataset_name: str = "problems"

    async def make_envs(self) -> Sequence[Env]:
        return [self.env_thunk() for _ in range(self.num_envs)]

    async def compute_group_rewards(
        self, trajectory_group: list[Trajectory], env_group: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        """Each answer was judged by itself."""
        return [(0.0, {}) for _ in trajectory_group]

    def logging_tags(self) -> list[str]:
        return [self.dataset_name]
