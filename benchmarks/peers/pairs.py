"""Pairs for DPO: as our data set, and as the files that TRL's worker reads."""

from pathlib import Path
from typing import Any

import chz

from benchmarks.preference_trl import HYPERPARAMETERS, in_order, text_pairs, write_for_trl
from tinker_cookbook.preference.dpo_datasets import DPODatasetBuilderFromComparisons
from tinker_cookbook.preference.preference_datasets import ComparisonDatasetBuilder
from tinker_cookbook.preference.types import Comparison, LabeledComparison
from tinker_cookbook.renderers import Message
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig
from tinker_cookbook.tokenizer_utils import get_tokenizer
from tinker_engine.model.lora import LoraSpec


@chz.chz
class GivenPairs(ComparisonDatasetBuilder):
    rows: list[list[str]] = chz.field(doc="Prompt, chosen and rejected answer")

    def get_train_and_test_datasets(self) -> tuple[list[list[str]], None]:
        return self.rows, None

    def example_to_labeled_comparison(self, example: Any) -> LabeledComparison:
        prompt, chosen, rejected = (_message(text, i) for i, text in enumerate(example))
        return LabeledComparison(Comparison([prompt], [chosen], [rejected]), "A")


def _message(text: str, place: int) -> Message:
    return Message(role="assistant" if place else "user", content=text)


def builder_of(setup: dict[str, Any]) -> DPODatasetBuilderFromComparisons:
    return DPODatasetBuilderFromComparisons(
        common_config=ChatDatasetBuilderCommonConfig(
            model_name_for_tokenizer=setup["model"],
            renderer_name="smollm2",
            max_length=None,
            batch_size=setup["batch_size"],
        ),
        comparison_builder=GivenPairs(rows=setup["rows"]),
    )


def lora_of(setup: dict[str, Any]) -> LoraSpec:
    """The head has no adapter: in TRL it would have no effect (`preference_trl`), and peft leaves it out."""
    return LoraSpec(setup["rank"], seed=0, train_unembed=False)


def write_pairs(folder: Path, setup: dict[str, Any]) -> Path:
    """For TRL: the texts as our renderer writes them."""
    folder.mkdir(exist_ok=True)
    pairs = text_pairs(in_order(builder_of(setup), epochs=1), get_tokenizer(setup["model"]))
    options = {**HYPERPARAMETERS, **{key: setup[key] for key in ("batch_size", "threads", "learning_rate")}}
    write_for_trl(folder, setup["model"], lora_of(setup), options, pairs)
    return folder
