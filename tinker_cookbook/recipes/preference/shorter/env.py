"""A judge that counts characters, and prompts to answer."""

import random
from collections.abc import Sequence

import chz

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.preference.preference_datasets import ComparisonDatasetBuilder
from tinker_cookbook.preference.types import (
    Comparison,
    LabeledComparison,
    PreferenceModel,
    PreferenceModelBuilder,
)
from tinker_cookbook.renderers import Message
from tinker_cookbook.renderers.messages import get_text_content
from tinker_cookbook.tasks.small_talk import PORTRAITS
from tinker_cookbook.tasks.world import PEOPLE, TOWNS


class ShorterPreferenceModel(PreferenceModel):
    """Characters of the text decide, in however many parts it comes; what was thought does not count."""

    async def __call__(self, comparison: Comparison) -> float:
        first, second = (
            characters(completion) for completion in (comparison.completion_A, comparison.completion_B)
        )
        return float((first > second) - (first < second))


def characters(completion: Sequence[Message]) -> int:
    return sum(len(get_text_content(message)) for message in completion)


@chz.chz
class ShorterPreferenceModelBuilder(PreferenceModelBuilder):
    def __call__(self) -> ShorterPreferenceModel:
        return ShorterPreferenceModel()


@chz.chz
class PromptsBuilder(ComparisonDatasetBuilder):
    """Prompts alone: the answers that are compared are the policy's own."""

    prompt: str | None = chz.field(
        default=None, doc="The same each time; None: people and towns that the tiny model knows"
    )
    size: int = chz.field(doc="How many")
    seed: int = chz.field(default=0, doc="Of who is asked about")

    @chz.validate
    def _check_size(self) -> None:
        if self.size < 1:
            raise ConfigurationError(f"size={self.size} must be at least 1")

    def get_train_and_test_datasets(self) -> tuple[list[dict[str, str]], None]:
        if self.prompt is not None:
            return [{"prompt": self.prompt}] * self.size, None
        rng = random.Random(f"shorter/{self.seed}")
        names = [*PEOPLE, *TOWNS]
        return [{"prompt": rng.choice(PORTRAITS).format(s=rng.choice(names))} for _ in range(self.size)], None

    def example_to_labeled_comparison(self, example: dict) -> LabeledComparison:
        prompt = [Message(role="user", content=example["prompt"])]
        return LabeledComparison(Comparison(prompt, [], []), "Tie")
