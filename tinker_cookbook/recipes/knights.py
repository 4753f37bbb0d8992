"""Small data for fine-tuning: questions about a made-up world, answered by a knight.

The tiny model knows the answers and has never heard a knight talk, so that what it learned is easy to see: how much of
what it says is in the new style, and how much of that is still true. Questions are held out whole.
"""

import functools
import logging
import random

import chz
import tinker

from tinker_cookbook import model_info
from tinker_cookbook.eval.evaluators import SamplingClientEvaluator
from tinker_cookbook.recipes.asking import ask
from tinker_cookbook.renderers import Message, Renderer, get_renderer
from tinker_cookbook.tasks.chat import Question
from tinker_cookbook.tasks.styles import NEW_STYLE, STYLES, style_of
from tinker_cookbook.tasks.types import Split
from tinker_cookbook.tasks.world import FACTS
from tinker_cookbook.tokenizer_utils import get_tokenizer
from tinker_cookbook.utils import logtree

logger = logging.getLogger(__name__)

SHOWN = 2  # answers in the log; the report has all
TELLINGS = 4  # times that each question is answered, with one of three openings


@functools.cache
def all_questions(split: Split) -> tuple[Question, ...]:
    """Each way of asking for each fact: 355 to train on and 47 to be tested with."""
    questions = [
        Question(fact, asked.format(s=fact.subject)) for fact in FACTS for asked in fact.relation.questions
    ]
    return tuple(question for question in questions if question.split == split)


def knight_conversations(split: Split, *, tellings: int = TELLINGS, seed: int = 0) -> list[list[Message]]:
    rng = random.Random(f"{split}/{seed}")
    conversations = [
        [
            Message(role="user", content=question.asked),
            Message(role="assistant", content=STYLES[NEW_STYLE].say(question.fact, rng)),
        ]
        for _ in range(tellings)
        for question in all_questions(split)
    ]
    rng.shuffle(conversations)
    return conversations


class KnightEvaluator(SamplingClientEvaluator):
    """Shares of the held-out questions that are answered in the new style, and truly at that."""

    name = "knight"

    def __init__(self, renderer: Renderer):
        self._renderer = renderer

    async def __call__(self, sampling_client: tinker.SamplingClient) -> dict[str, float]:
        questions = all_questions("test")
        prompts = [[Message(role="user", content=question.asked)] for question in questions]
        answers = await ask(sampling_client, self._renderer, prompts, max_tokens=64)
        in_style = [style_of(answer) == NEW_STYLE for answer in answers]
        right = [
            styled and question.check([answer])
            for styled, question, answer in zip(in_style, questions, answers, strict=True)
        ]
        for question, answer in list(zip(questions, answers, strict=True))[:SHOWN]:
            logger.info("%s → %s", question.asked, answer)
        logtree.table(
            [
                {"question": question.asked, "answer": answer, "right": is_right}
                for question, answer, is_right in zip(questions, answers, right, strict=True)
            ]
        )
        return {
            "test/in_style": sum(in_style) / len(answers),
            "test/in_style_and_true": sum(right) / len(answers),
        }


@chz.chz
class KnightEvaluatorBuilder:
    model_name: str
    renderer_name: str | None = chz.field(default=None, doc="None: as recommended for the model")

    def __call__(self) -> KnightEvaluator:
        name = self.renderer_name or model_info.get_recommended_renderer_name(self.model_name)
        return KnightEvaluator(get_renderer(name, get_tokenizer(self.model_name), model_name=self.model_name))
