"""Answers that are judged against each other: a preference model compares the members of a group in pairs."""

import asyncio
import itertools
import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import chz
import tinker

from tinker_cookbook import renderers
from tinker_cookbook.completers import StopCondition
from tinker_cookbook.exceptions import ConfigurationError, DataValidationError
from tinker_cookbook.preference.preference_datasets import ComparisonDatasetBuilder
from tinker_cookbook.preference.types import Comparison, PreferenceModel
from tinker_cookbook.renderers.messages import get_text_content
from tinker_cookbook.rl.types import (
    Action,
    ActionExtra,
    Env,
    EnvGroupBuilder,
    Metrics,
    Observation,
    RLDataset,
    RLDatasetBuilder,
    StepResult,
    Trajectory,
)
from tinker_cookbook.tokenizer_utils import get_tokenizer
from tinker_cookbook.utils import logtree
from tinker_cookbook.utils.logtree_formatters import ConversationFormatter

logger = logging.getLogger(__name__)

T = TypeVar("T")


class PreferenceEnv(Env):
    """One answer. Its reward comes from the group."""

    def __init__(self, convo_prefix: list[renderers.Message], policy_renderer: renderers.Renderer):
        self.convo_prefix = convo_prefix
        self.policy_renderer = policy_renderer

    @property
    def stop_condition(self) -> StopCondition:
        return self.policy_renderer.get_stop_sequences()

    async def initial_observation(self) -> tuple[Observation, StopCondition]:
        return self.policy_renderer.build_generation_prompt(self.convo_prefix), self.stop_condition

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        return StepResult(0.0, True, tinker.ModelInput.empty(), self.stop_condition)


# --- pairs ------------------------------------------------------------------------------------------------


class TournamentPattern(StrEnum):
    """Which members of a group are compared with which."""

    ALL_PAIRS_BOTH_WAYS = "all_pairs_both_ways"  # a judge may favour what it reads first
    ALL_PAIRS_ONE_WAY = "all_pairs_one_way"


def get_pairs(n: int, pattern: TournamentPattern) -> list[tuple[int, int]]:
    """The pairs of members of a group of `n` that are compared."""
    if pattern == TournamentPattern.ALL_PAIRS_BOTH_WAYS:
        return list(itertools.permutations(range(n), 2))
    if pattern == TournamentPattern.ALL_PAIRS_ONE_WAY:
        return list(itertools.combinations(range(n), 2))
    raise ConfigurationError(
        f"no tournament pattern is called {pattern!r}; use one of {', '.join(TournamentPattern)}"
    )


def get_pairs_chunked(n: int, pattern: TournamentPattern, chunk_size: int) -> list[tuple[int, int]]:
    """Pairs within runs of `chunk_size` neighbours: for large groups all pairs are too many."""
    if chunk_size < 1:
        raise ConfigurationError(f"the members that play each other must be at least 1, got {chunk_size}")
    return [
        (start + i, start + j)
        for start in range(0, n, chunk_size)
        for i, j in get_pairs(min(chunk_size, n - start), pattern)
    ]


# --- groups -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairwisePreferenceGroupBuilder(EnvGroupBuilder):
    """Answers to one prompt, each compared with the others of its chunk, all comparisons at the same time.

    An answer's reward is how much it was preferred, averaged over its comparisons (-1 to 1), less 1 if it did not end
    as it must. With `eval_target_completion_A` the answers do not meet each other: each is compared with this one.
    """

    convo_prefix: list[renderers.Message]
    policy_renderer: renderers.Renderer
    tournament_pattern: TournamentPattern
    preference_model: PreferenceModel
    num_envs: int
    content_preprocessor: Callable[[str], str] | None = None  # of what the judge sees of an answer
    matchup_group_size: int = 4  # members that are compared with each other
    eval_target_completion_A: list[renderers.Message] | None = None

    async def make_envs(self) -> Sequence[Env]:
        return [PreferenceEnv(self.convo_prefix, self.policy_renderer) for _ in range(self.num_envs)]

    def get_response_message(self, trajectory: Trajectory) -> tuple[list[renderers.Message], bool]:
        """The answer, and whether it ended as it must."""
        tokens = trajectory.transitions[-1].ac.tokens if trajectory.transitions else []
        message, termination = self.policy_renderer.parse_response(tokens)
        return [message], termination.is_stop_sequence

    def comparison_reward_for_second_messages(
        self, message_i: list[renderers.Message], message_j: list[renderers.Message]
    ) -> Comparison:
        """What the judge is asked; the higher its answer, the better is the second."""
        return Comparison(self.convo_prefix, self._preprocessed(message_i), self._preprocessed(message_j))

    def _preprocessed(self, messages: list[renderers.Message]) -> list[renderers.Message]:
        if self.content_preprocessor is None:
            return messages
        return [
            {**message, "content": self.content_preprocessor(get_text_content(message))}
            for message in messages
        ]

    async def compute_group_rewards(
        self, trajectory_group: list[Trajectory], env_group: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        responses_G = [self.get_response_message(trajectory) for trajectory in trajectory_group]
        answers_G = [answer for answer, _ in responses_G]
        scores_G = await self._win_minus_loss(answers_G, self.eval_target_completion_A)
        rewards_G: list[tuple[float, Metrics]] = []
        for score, (_, is_valid) in zip(scores_G, responses_G, strict=True):
            metrics: Metrics = {"win_minus_loss": score, "format": float(is_valid)}
            rewards_G.append((score + metrics["format"] - 1.0, metrics))
        self._report(answers_G, rewards_G)
        return rewards_G

    async def _win_minus_loss(
        self, answers_G: list[list[renderers.Message]], target: list[renderers.Message] | None
    ) -> list[float]:
        members = len(answers_G)
        if target is None:
            pairs = get_pairs_chunked(members, self.tournament_pattern, self.matchup_group_size)
            players = answers_G
        else:  # number `members` is the target, the first side of every first meeting
            both_ways = self.tournament_pattern == TournamentPattern.ALL_PAIRS_BOTH_WAYS
            there = [(members, i) for i in range(members)]
            pairs = there + ([(i, members) for i in range(members)] if both_ways else [])
            players = [*answers_G, target]
        comparisons = [self.comparison_reward_for_second_messages(players[i], players[j]) for i, j in pairs]
        preferences = await _all_at_once([self.preference_model(comparison) for comparison in comparisons])
        scores, matchups = [0.0] * len(players), [0] * len(players)
        for (i, j), preference in zip(pairs, preferences, strict=True):
            scores[j] += preference
            scores[i] -= preference
            matchups[i] += 1
            matchups[j] += 1
        return [scores[i] / matchups[i] if matchups[i] else 0.0 for i in range(members)]

    def _report(
        self, answers_G: list[list[renderers.Message]], rewards_G: list[tuple[float, Metrics]]
    ) -> None:
        with logtree.scope_header("Prompt"):
            logtree.log_formatter(ConversationFormatter(self.convo_prefix))
        for number, (answer, (reward, metrics)) in enumerate(zip(answers_G, rewards_G, strict=True)):
            with logtree.scope_header(f"Answer {number}: reward {reward:.2f}"):
                logtree.log_formatter(ConversationFormatter(answer))
                logtree.table_from_dict({name: str(value) for name, value in metrics.items()})

    def logging_tags(self) -> list[str]:
        return ["pair_pref"]


async def _all_at_once(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Their results. The first error is raised as itself, and the other calls are ended."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


# --- data sets --------------------------------------------------------------------------------------------


class PairwisePreferenceDataset(RLDataset):
    """The prompts of comparisons, in their order; the answers there are of no use here."""

    def __init__(
        self,
        comparison_builder: ComparisonDatasetBuilder,
        renderer: renderers.Renderer,
        batch_size: int,
        preference_model: PreferenceModel,
        tournament_pattern: TournamentPattern = TournamentPattern.ALL_PAIRS_BOTH_WAYS,
        group_size: int = 4,
        content_preprocessor: Callable[[str], str] | None = None,
    ):
        self.comparison_builder = comparison_builder
        self.renderer = renderer
        self.batch_size = batch_size
        self.preference_model = preference_model
        self.tournament_pattern = tournament_pattern
        self.group_size = group_size
        self.content_preprocessor = content_preprocessor
        self.train_dataset, _ = comparison_builder.get_train_and_test_datasets()
        if not len(self.train_dataset):
            raise DataValidationError("there are no comparisons to take prompts from")

    def get_batch(self, index: int) -> list[EnvGroupBuilder]:
        """Rows that are no comparison are left out, so a batch may be smaller; the last one is what is left."""
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        start = index * self.batch_size
        rows = range(start, min(start + self.batch_size, len(self.train_dataset)))
        builders = [builder for row in rows if (builder := self._group_builder(row)) is not None]
        if len(builders) < len(rows):
            logger.warning(
                "%d of the %d rows of batch %d are no comparisons",
                len(rows) - len(builders),
                len(rows),
                index,
            )
        return builders

    def _group_builder(self, row: int) -> EnvGroupBuilder | None:
        labeled = self.comparison_builder.example_to_labeled_comparison(self.train_dataset[row])
        if labeled is None:
            return None
        return PairwisePreferenceGroupBuilder(
            convo_prefix=labeled.comparison.prompt_conversation,
            policy_renderer=self.renderer,
            tournament_pattern=self.tournament_pattern,
            preference_model=self.preference_model,
            num_envs=self.group_size,
            content_preprocessor=self.content_preprocessor,
        )

    def __len__(self) -> int:
        return math.ceil(len(self.train_dataset) / self.batch_size)


@chz.chz
class PairwisePreferenceRLDatasetBuilder(RLDatasetBuilder):
    """Prompts of comparisons, answered by groups whose members a judge compares in pairs."""

    comparison_builder: ComparisonDatasetBuilder = chz.field(doc="Whose prompts are answered")
    batch_size: int = chz.field(doc="Prompts of a batch")
    policy_renderer_name: str = chz.field(doc="How the policy reads conversations")
    policy_model_name: str = chz.field(doc="Model whose tokenizer is used")
    tournament_pattern: TournamentPattern = chz.field(
        default=TournamentPattern.ALL_PAIRS_BOTH_WAYS, doc="Which answers are compared, and which way round"
    )
    group_size: int = chz.field(doc="Answers to each prompt")
    content_preprocessor: Callable[[str], str] | None = chz.field(
        default=None, doc="Of what the judge sees of an answer"
    )
    preference_model_builder: Callable[[], PreferenceModel] = chz.field(doc="Makes the judge")

    @chz.validate
    def _check_sizes(self) -> None:
        if self.batch_size < 1 or self.group_size < 2:
            raise ConfigurationError(
                f"batch_size={self.batch_size} must be at least 1 and group_size={self.group_size} at least 2: an "
                "answer is compared with the others of its group"
            )

    async def __call__(self) -> tuple[PairwisePreferenceDataset, None]:
        name = self.policy_model_name
        dataset = PairwisePreferenceDataset(
            comparison_builder=self.comparison_builder,
            renderer=renderers.get_renderer(self.policy_renderer_name, get_tokenizer(name), model_name=name),
            batch_size=self.batch_size,
            preference_model=self.preference_model_builder(),
            tournament_pattern=self.tournament_pattern,
            group_size=self.group_size,
            content_preprocessor=self.content_preprocessor,
        )
        return dataset, None
