"""An environment whose reward is what a model says of the reply, item by item."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import chz
import tinker

from tinker_cookbook import service
from tinker_cookbook.completers import MessageCompleter, StopCondition, TinkerMessageCompleter
from tinker_cookbook.exceptions import ConfigurationError, DataValidationError
from tinker_cookbook.model_info import get_recommended_renderer_name
from tinker_cookbook.recipes.rubric.data import Rubric, RubricBasedDatapoint, read_datapoints, text_of
from tinker_cookbook.renderers import Message, Renderer, get_renderer
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
)
from tinker_cookbook.tokenizer_utils import get_tokenizer
from tinker_cookbook.utils import logtree
from tinker_cookbook.utils.logtree_formatters import ConversationFormatter

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Grade:
    item: Rubric
    said: str  # by the grader
    score: float | None  # None: it could not be read


class RubricGradedEnv(Env):
    """One reply, whose items are graded all at once. A grade that cannot be read counts as 0 and as `grader_failed`."""

    def __init__(
        self,
        datapoint: RubricBasedDatapoint,
        renderer: Renderer,
        grader: MessageCompleter,
        format_coef: float = 0.1,
        grader_timeout: float = 300.0,
    ):
        self.datapoint = datapoint
        self.renderer = renderer
        self.grader = grader
        self.format_coef = format_coef
        self.grader_timeout = grader_timeout

    @property
    def stop_condition(self) -> StopCondition:
        return self.renderer.get_stop_sequences()

    async def initial_observation(self) -> tuple[Observation, StopCondition]:
        return self.renderer.build_generation_prompt(self.datapoint.convo), self.stop_condition

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        message, termination = self.renderer.parse_response(action)
        convo = [*self.datapoint.convo, message]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._grade(item, convo)) for item in self.datapoint.rubric_items]
        grades = [task.result() for task in tasks]
        rubric_score = sum(grade.score or 0.0 for grade in grades) / len(grades)
        is_formed = float(termination.is_stop_sequence)
        metrics: Metrics = {
            "format": is_formed,
            "rubric_score": rubric_score,
            "grader_failed": sum(grade.score is None for grade in grades) / len(grades),
            "reply_chars": len(text_of(message)),
        }
        reward = rubric_score + self.format_coef * (is_formed - 1)
        _report(convo, grades, reward)
        return StepResult(reward, True, tinker.ModelInput.empty(), self.stop_condition, metrics)

    async def _grade(self, item: Rubric, convo: Sequence[Message]) -> Grade:
        try:
            answer = await asyncio.wait_for(self.grader(item.prompt(convo)), self.grader_timeout)
        except TimeoutError:
            logger.warning("the grader gave no answer in %g s; scored 0", self.grader_timeout)
            return Grade(item, "", None)
        said = get_text_content(answer)
        return Grade(item, said, item.score(said))


def _report(convo: Sequence[Message], grades: Sequence[Grade], reward: float) -> None:
    with logtree.scope_header("Conversation"):
        logtree.log_formatter(ConversationFormatter(list(convo)))
    with logtree.scope_header(f"Grades, reward {reward:.3f}"):
        logtree.table(
            [
                {
                    "rubric": grade.item.rubric_str,
                    "grader said": grade.said,
                    "score": "none" if grade.score is None else f"{grade.score:.3f}",
                }
                for grade in grades
            ]
        )


@dataclass(frozen=True)
class RubricGroupBuilder(EnvGroupBuilder):
    datapoint: RubricBasedDatapoint
    renderer: Renderer
    grader: MessageCompleter
    num_envs: int
    format_coef: float = 0.1
    grader_timeout: float = 300.0

    async def make_envs(self) -> Sequence[Env]:
        return [
            RubricGradedEnv(self.datapoint, self.renderer, self.grader, self.format_coef, self.grader_timeout)
            for _ in range(self.num_envs)
        ]

    def logging_tags(self) -> list[str]:
        return ["rubric"]


class RubricDataset(RLDataset):
    """Whatever does not fill the last batch is left out."""

    def __init__(self, groups: Sequence[RubricGroupBuilder], batch_size: int):
        self._groups = list(groups)
        self._batch_size = batch_size

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        start = index * self._batch_size
        return self._groups[start : start + self._batch_size]

    def __len__(self) -> int:
        return len(self._groups) // self._batch_size


@chz.chz
class GraderConfig:
    """The model that grades: any that the server has."""

    model_name: str
    renderer_name: str | None = chz.field(default=None, doc="None: as the model was taught")
    checkpoint: str | None = chz.field(default=None, doc="tinker:// path of its weights, if trained")
    max_tokens: int = chz.field(default=1024, doc="Of what it says about one item")
    temperature: float = chz.field(default=0.0, doc="0: the same grade for the same reply")
    base_url: str | None = None

    async def __call__(self) -> MessageCompleter:
        service_client = await asyncio.to_thread(service.connect, self.base_url)
        if self.checkpoint is None:
            client = await service_client.create_sampling_client_async(base_model=self.model_name)
        else:
            client = await service_client.create_sampling_client_async(model_path=self.checkpoint)
        name = self.renderer_name or get_recommended_renderer_name(self.model_name)
        tokenizer = await asyncio.to_thread(get_tokenizer, self.model_name)
        renderer = get_renderer(name, tokenizer, model_name=self.model_name)
        return TinkerMessageCompleter(client, renderer, self.max_tokens, temperature=self.temperature)


@chz.chz
class RubricDatasetBuilder(RLDatasetBuilder):
    train_data: str = chz.field(doc="JSONL of conversations with their rubrics, as generate_data writes it")
    test_data: str | None = chz.field(default=None, doc="Likewise; None: nothing is tested")
    test_size: int | None = chz.field(default=None, doc="Of test_data, the first so many; None: all")
    batch_size: int = chz.field(doc="Conversations in a batch")
    group_size: int = chz.field(doc="Replies to each")
    model_name_for_tokenizer: str = chz.field(doc="The model that replies")
    renderer_name: str = chz.field(doc="How it is asked")
    grader: GraderConfig = chz.field(doc="The model that grades")
    format_coef: float = chz.field(default=0.1, doc="What a reply that was cut off loses")
    grader_timeout: float = chz.field(default=300.0, doc="Seconds to wait for a grade")

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        train = await asyncio.to_thread(read_datapoints, self.train_data)
        if len(train) < self.batch_size:
            raise DataValidationError(
                f"{self.train_data} has {len(train)} conversations, and a batch takes {self.batch_size}"
            )
        if self.test_size is not None and self.test_size < 1:
            raise ConfigurationError("test_size must be at least 1; to test nothing, give no test_data")
        test = await asyncio.to_thread(read_datapoints, self.test_data) if self.test_data else []
        name = self.model_name_for_tokenizer
        renderer = get_renderer(
            self.renderer_name, await asyncio.to_thread(get_tokenizer, name), model_name=name
        )
        grader = await self.grader()

        def groups(datapoints: Sequence[RubricBasedDatapoint], size: int) -> list[RubricGroupBuilder]:
            return [
                RubricGroupBuilder(datapoint, renderer, grader, size, self.format_coef, self.grader_timeout)
                for datapoint in datapoints
            ]

        held_out = groups(test[: self.test_size], 1)
        return (
            RubricDataset(groups(train, self.group_size), self.batch_size),
            RubricDataset(held_out, len(held_out)) if held_out else None,
        )
