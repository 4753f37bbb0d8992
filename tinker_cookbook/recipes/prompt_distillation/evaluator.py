"""How often a model gives the right label, and how often any label of the task."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import chz
import tinker

from tinker_cookbook import model_info
from tinker_cookbook.eval.evaluators import SamplingClientEvaluator
from tinker_cookbook.recipes.asking import ask
from tinker_cookbook.recipes.prompt_distillation.tasks import DistillationTask, Item, get_task
from tinker_cookbook.renderers import Message, Renderer, get_renderer
from tinker_cookbook.tokenizer_utils import get_tokenizer
from tinker_cookbook.utils import logtree

logger = logging.getLogger(__name__)

SHOWN = 2  # answers in the log; the report has all


@dataclass(frozen=True)
class Answered:
    item: Item
    reply: str
    label: str | None  # None: the reply is none of the labels

    @property
    def is_right(self) -> bool:
        return self.label is not None and self.label == self.item.label


@dataclass(frozen=True)
class Score:
    answers: Sequence[Answered]

    @property
    def accuracy(self) -> float:
        return sum(answer.is_right for answer in self.answers) / len(self.answers)

    @property
    def in_label_set(self) -> float:
        return sum(answer.label is not None for answer in self.answers) / len(self.answers)


async def score(
    sampling_client: tinker.SamplingClient, renderer: Renderer, task: DistillationTask, *, with_prompt: bool
) -> Score:
    """On the texts of the task that are held out, at temperature 0; as the teacher, or as the student."""
    items = task.items("test")
    before = [Message(role="system", content=task.prompt)] if with_prompt else []
    prompts = [[*before, Message(role="user", content=item.text)] for item in items]
    read: Callable[[str], str | None] = task.read_teacher if with_prompt else task.read_student
    max_tokens = task.teacher_tokens if with_prompt else task.student_tokens
    replies = await ask(sampling_client, renderer, prompts, max_tokens=max_tokens)
    return Score([Answered(item, reply, read(reply)) for item, reply in zip(items, replies, strict=True)])


class LabelEvaluator(SamplingClientEvaluator):
    """The student's `test/accuracy` and `test/in_label_set` while it is trained."""

    name = "labels"

    def __init__(self, task: DistillationTask, renderer: Renderer):
        self._task = task
        self._renderer = renderer

    async def __call__(self, sampling_client: tinker.SamplingClient) -> dict[str, float]:
        result = await score(sampling_client, self._renderer, self._task, with_prompt=False)
        for each in result.answers[:SHOWN]:
            logger.info("%s → %s", each.item.text, each.reply)
        logtree.table(
            [
                {"text": each.item.text, "right": each.item.label, "said": each.reply}
                for each in result.answers
            ]
        )
        return {"test/accuracy": result.accuracy, "test/in_label_set": result.in_label_set}


@chz.chz
class LabelEvaluatorBuilder:
    task: str
    model_name: str
    renderer_name: str | None = chz.field(default=None, doc="None: as recommended for the model")

    def __call__(self) -> LabelEvaluator:
        name = self.renderer_name or model_info.get_recommended_renderer_name(self.model_name)
        renderer = get_renderer(name, get_tokenizer(self.model_name), model_name=self.model_name)
        return LabelEvaluator(get_task(self.task), renderer)
