"""Pairs for tests: a polite answer is better than a short one."""

from typing import Any

import chz
import tinker

from tests.tinker_cookbook.rl.tiny import MODEL, text_of
from tinker_cookbook.preference.dpo_datasets import (
    DPODatasetBuilderFromComparisons,
    KTODatasetBuilder,
    LabeledExamplesFromComparisons,
)
from tinker_cookbook.preference.preference_datasets import ComparisonDatasetBuilder
from tinker_cookbook.preference.types import Comparison, Label, LabeledComparison
from tinker_cookbook.renderers import Message
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig


def labeled(prompt: str, a: str, b: str, label: Label = "A") -> LabeledComparison:
    answers = [[Message(role="assistant", content=text)] for text in (a, b)]
    return LabeledComparison(Comparison([Message(role="user", content=prompt)], *answers), label)


def polite(number: int) -> LabeledComparison:
    """Every other one has the better answer second."""
    better = labeled(f"What is {number} + 1?", f"Happily: {number + 1}.", f"{number + 1}")
    return better.swap() if number % 2 else better


@chz.chz
class Given(ComparisonDatasetBuilder):
    """Rows as they are; None is one that the builder leaves out."""

    train: list[Any]
    test: list[Any] | None = None

    def get_train_and_test_datasets(self):
        return self.train, self.test

    def example_to_labeled_comparison(self, example: Any) -> LabeledComparison | None:
        return example


def common(batch_size: int = 4, max_length: int | None = None) -> ChatDatasetBuilderCommonConfig:
    return ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=MODEL, renderer_name="chatml", max_length=max_length, batch_size=batch_size
    )


def pairs(
    train: list[Any], test: list[Any] | None = None, *, batch_size: int = 4, max_length: int | None = None
) -> DPODatasetBuilderFromComparisons:
    given = Given(train=train, test=test)
    return DPODatasetBuilderFromComparisons(
        common_config=common(batch_size, max_length), comparison_builder=given
    )


def singles(
    train: list[Any], test: list[Any] | None = None, *, batch_size: int = 4, max_length: int | None = None
) -> KTODatasetBuilder:
    examples = LabeledExamplesFromComparisons(comparison_builder=Given(train=train, test=test))
    return KTODatasetBuilder(common_config=common(batch_size, max_length), example_builder=examples)


def learned(datum: tinker.Datum) -> str:
    """The text that has weight."""
    targets, weights = (datum.loss_fn_inputs[key].tolist() for key in ("target_tokens", "weights"))
    return text_of([token for token, weight in zip(targets, weights, strict=True) if weight])
