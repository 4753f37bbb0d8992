"""Small data of preferences with a stated rule: of two answers the one with better manners wins.

Questions are those of the tiny model's made-up world, which it answers in one of six styles when nobody asks for one,
mostly plainly. `ORDER` says which style is better than which. Both answers of a pair are true, so that the style is all
there is to learn, and questions are held out whole.
"""

import random
from collections.abc import Sequence
from typing import Any

import chz
import tinker

from tinker_cookbook import model_info
from tinker_cookbook.eval.evaluators import SamplingClientEvaluator
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.preference.preference_datasets import ComparisonDatasetBuilder, Table
from tinker_cookbook.preference.types import (
    Comparison,
    Label,
    LabeledComparison,
    PreferenceModel,
    PreferenceModelBuilder,
)
from tinker_cookbook.recipes.asking import ask
from tinker_cookbook.recipes.chat_sl.chat_datasets import InMemoryDataset, to_datum
from tinker_cookbook.recipes.knights import all_questions
from tinker_cookbook.renderers import Message, Renderer, TrainOnWhat, get_renderer
from tinker_cookbook.renderers.messages import get_text_content
from tinker_cookbook.supervised.types import ChatDatasetBuilder, SupervisedDataset
from tinker_cookbook.tasks.styles import STYLES, style_of
from tinker_cookbook.tasks.types import Split
from tinker_cookbook.tokenizer_utils import get_tokenizer
from tinker_cookbook.utils import logtree

ORDER = ("polite", "excited", "rhyming", "pirate", "plain", "terse")
"""The rule: styles from the best to the worst. Below all of them is what has no style."""

MAX_TOKENS = 48  # the longest answer of the data has 26


def manners(text: str) -> int:
    """How good they are: 6 for a polite answer, 0 for none that is known."""
    style = style_of(text)
    return len(ORDER) - ORDER.index(style) if style in ORDER else 0


def better(first: str, second: str) -> Label:
    difference = manners(second) - manners(first)
    return "Tie" if difference == 0 else "B" if difference > 0 else "A"


class MannersRule(PreferenceModel):
    """The rule itself as a judge, for which a trained one can be checked."""

    async def __call__(self, comparison: Comparison) -> float:
        first, second = (_text(side) for side in (comparison.completion_A, comparison.completion_B))
        return {"A": -1.0, "B": 1.0, "Tie": 0.0}[better(first, second)]


@chz.chz
class MannersRuleBuilder(PreferenceModelBuilder):
    def __call__(self) -> MannersRule:
        return MannersRule()


def _text(completion: Sequence[Message]) -> str:
    return get_text_content(completion[-1]).strip()


# --- data -------------------------------------------------------------------------------------------------


@chz.chz
class MannersComparisonBuilder(ComparisonDatasetBuilder):
    """For each question some pairs of answers in different styles; the better one is A as often as B."""

    pairs_per_question: int = chz.field(default=8, doc="Of each question to train on; 2 of each to test on")
    best_wins: bool = chz.field(
        default=False, doc="Pair each time the best style with another one, in place of any with any"
    )
    seed: int = chz.field(default=0, doc="Of the styles, of who is A, and of the order")

    @chz.validate
    def _check_pairs(self) -> None:
        if self.pairs_per_question < 1:
            raise ConfigurationError(f"pairs_per_question={self.pairs_per_question} must be at least 1")

    def get_train_and_test_datasets(self) -> tuple[Table, Table]:
        return self._pairs("train", self.pairs_per_question), self._pairs("test", 2)

    def example_to_labeled_comparison(self, example: dict) -> LabeledComparison:
        return LabeledComparison(Comparison(**example["comparison"]), example["label"])

    def _pairs(self, split: Split, per_question: int) -> list[dict[str, Any]]:
        """Rows as `ComparisonBuilderFromJsonl` reads them."""
        rng = random.Random(f"manners/{split}/{self.seed}")
        rows: list[dict[str, Any]] = []
        for question in all_questions(split) * per_question:
            first, second = (STYLES[name].say(question.fact, rng) for name in self._two_styles(rng))
            comparison = {
                "prompt_conversation": [Message(role="user", content=question.asked)],
                "completion_A": [Message(role="assistant", content=first)],
                "completion_B": [Message(role="assistant", content=second)],
            }
            rows.append({"comparison": comparison, "label": better(first, second)})
        rng.shuffle(rows)
        return rows

    def _two_styles(self, rng: random.Random) -> list[str]:
        if not self.best_wins:
            return rng.sample(ORDER, 2)
        return rng.sample([ORDER[0], rng.choice(ORDER[1:])], 2)


def mannered_conversations(split: Split, *, tellings: int = 4, seed: int = 0) -> list[list[Message]]:
    """Each question answered so many times, every style as often as any other."""
    rng = random.Random(f"manners/talk/{split}/{seed}")
    conversations = [
        [
            Message(role="user", content=question.asked),
            Message(role="assistant", content=STYLES[rng.choice(ORDER)].say(question.fact, rng)),
        ]
        for question in all_questions(split) * tellings
    ]
    rng.shuffle(conversations)
    return conversations


@chz.chz
class MannersConversationBuilder(ChatDatasetBuilder):
    """To be fine-tuned on: answers of all manners."""

    tellings: int = chz.field(default=4, doc="Times that each question is answered")
    seed: int = chz.field(default=0, doc="Of the styles and of the order")

    def __call__(self) -> tuple[SupervisedDataset, SupervisedDataset]:
        train = mannered_conversations("train", tellings=self.tellings, seed=self.seed)
        test = mannered_conversations("test", tellings=2, seed=self.seed)
        return (
            InMemoryDataset(train, self.common_config.batch_size, self._datum),
            InMemoryDataset(test, len(test), self._datum),
        )

    def _datum(self, conversation: list[Message]) -> tinker.Datum:
        return to_datum(self, conversation, TrainOnWhat.ALL_ASSISTANT_MESSAGES)


def held_out_prompts(per_question: int = 1) -> list[list[Message]]:
    return [
        [Message(role="user", content=question.asked)] for question in all_questions("test")
    ] * per_question


# --- what a model does ------------------------------------------------------------------------------------


class MannersEvaluator(SamplingClientEvaluator):
    """Shares of answers to held-out questions, at temperature 1, that have the best manners, and that are true."""

    name = "manners"

    def __init__(self, renderer: Renderer, answers_per_question: int = 4, seed: int = 0):
        self._renderer = renderer
        self._answers_per_question = answers_per_question
        self._seed = seed

    async def __call__(self, sampling_client: tinker.SamplingClient) -> dict[str, float]:
        questions = all_questions("test") * self._answers_per_question
        answers = await ask(
            sampling_client,
            self._renderer,
            held_out_prompts(self._answers_per_question),
            max_tokens=MAX_TOKENS,
            temperature=1.0,
            seed=self._seed,
        )
        best = [style_of(answer) == ORDER[0] for answer in answers]
        true = [question.check([answer]) for question, answer in zip(questions, answers, strict=True)]
        logtree.table(
            [
                {"question": question.asked, "answer": answer, "style": style_of(answer), "true": is_true}
                for question, answer, is_true in zip(questions, answers, true, strict=True)
            ]
        )
        return {"style/preferred": sum(best) / len(answers), "style/true": sum(true) / len(answers)}


@chz.chz
class MannersEvaluatorBuilder:
    model_name: str
    renderer_name: str | None = chz.field(default=None, doc="None: as recommended for the model")
    answers_per_question: int = 4
    seed: int = chz.field(default=0, doc="Of sampling")

    def __call__(self) -> MannersEvaluator:
        name = self.renderer_name or model_info.get_recommended_renderer_name(self.model_name)
        renderer = get_renderer(name, get_tokenizer(self.model_name), model_name=self.model_name)
        return MannersEvaluator(renderer, self.answers_per_question, self.seed)
