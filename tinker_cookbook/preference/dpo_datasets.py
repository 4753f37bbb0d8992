"""Data for losses over preferences: pairs as neighbours, chosen first; or single answers that are wanted or not.

All rows are looked at when the data is built, so that a batch is whole and an epoch has as many batches however it is
read. Left out, and counted in a warning: ties, pairs of twice the same answer, and what is longer than max_length. A
pair goes with both its sides, and is not cut: it was judged whole, and an answer without its end teaches not to end.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import chz
import numpy as np
import tinker

from tinker_cookbook.exceptions import ConfigurationError, DataValidationError, RendererError
from tinker_cookbook.preference.preference_datasets import ComparisonDatasetBuilder, Table
from tinker_cookbook.preference.types import LabeledComparison, LabeledExample
from tinker_cookbook.renderers import Message, Renderer, TrainOnWhat
from tinker_cookbook.renderers.messages import ensure_list
from tinker_cookbook.supervised.common import datum_from_model_input_weights
from tinker_cookbook.supervised.types import ChatDatasetBuilder, SupervisedDataset

logger = logging.getLogger(__name__)

IS_DESIRABLE = "is_desirable"
"""Among the loss inputs of an unpaired datum: [1.0] or [0.0]."""

Datums = list[tinker.Datum]


# --- from conversations to datums -------------------------------------------------------------------------


class _LeftOut(Exception):
    """Why a row is not trained on, in words that are counted."""


class CompletionRenderer:
    """A prompt and its completion as a datum whose weights are 1 on the completion, or what else is asked for."""

    def __init__(self, renderer: Renderer, max_length: int | None, train_on_what: TrainOnWhat | None):
        self._renderer = renderer
        self._max_length = max_length
        self._what = train_on_what

    def __call__(self, prompt: list[Message], completion: list[Message]) -> tinker.Datum:
        if not any(_says_something(message) for message in completion):
            raise DataValidationError("a completion is empty, so that there is nothing to learn from it")
        if (role := completion[-1]["role"]) != "assistant":
            raise DataValidationError(
                f"a completion must end with a message of the assistant, and not of {role}"
            )
        whole = TrainOnWhat.LAST_ASSISTANT_TURN if len(completion) > 1 else TrainOnWhat.LAST_ASSISTANT_MESSAGE
        model_input, weights = self._renderer.build_supervised_example(
            [*prompt, *completion], self._what or whole
        )
        if self._max_length is not None and model_input.length > self._max_length:
            raise _LeftOut(f"longer than max_length={self._max_length}")
        if not weights[1:].any():
            raise DataValidationError(f"nothing of a completion is learned with train_on_what={self._what}")
        return datum_from_model_input_weights(model_input, weights)


def _says_something(message: Message) -> bool:
    parts = ensure_list(message["content"])
    return bool(message.get("tool_calls")) or any(part.get(part["type"], True) for part in parts)


# --- rows to batches --------------------------------------------------------------------------------------


class PreferenceDataset(SupervisedDataset):
    """`render` gives the datums of one row, or raises _LeftOut. The order of an epoch depends on its seed alone.

    What fills no whole batch is left out of an epoch, unless `keep_rest`.
    """

    def __init__(
        self,
        rows: Table,
        render: Callable[[Any], Datums],
        batch_size: int,
        *,
        keep_rest: bool = False,
        what: str = "pairs",
    ):
        if batch_size < 1:
            raise ConfigurationError(f"batch_size={batch_size} must be at least 1")
        self._rows = rows
        self._render = render
        self._batch_size = batch_size
        self._keep_rest = keep_rest
        self.left_out: Counter[str] = Counter()
        logger.info("looking at %d rows", len(rows))  # takes minutes where there are a hundred thousand
        self._usable = np.array([i for i in range(len(rows)) if self._is_usable(i)], dtype=np.int64)
        self._order = self._usable
        self._report(what)

    def __len__(self) -> int:
        rest = self._batch_size - 1 if self._keep_rest else 0
        return (len(self._usable) + rest) // self._batch_size

    def set_epoch(self, seed: int = 0) -> None:
        self._order = self._usable[np.random.default_rng(seed).permutation(len(self._usable))]

    def get_batch(self, index: int) -> Datums:
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        numbers = self._order[index * self._batch_size : (index + 1) * self._batch_size]
        return [datum for number in numbers for datum in self._datums(int(number))]

    def metrics(self) -> dict[str, float]:
        return {"data/left_out": float(self.left_out.total())}

    def _is_usable(self, number: int) -> bool:
        try:
            self._datums(number)
        except _LeftOut as reason:
            self.left_out[str(reason)] += 1
            return False
        return True

    def _datums(self, number: int) -> Datums:
        try:
            return self._render(self._rows[number])
        except (DataValidationError, RendererError) as error:
            raise DataValidationError(f"row {number}: {error}; mend it, or leave it out") from error

    def _report(self, what: str) -> None:
        total, kept = len(self._rows), len(self._usable)
        reasons = "; ".join(f"{count} {reason}" for reason, count in self.left_out.most_common())
        if not kept:
            raise DataValidationError(
                f"there are no {what} to learn from: of {total} rows, {reasons or 'none'}"
            )
        if self.left_out:
            logger.warning("%d of %d rows are left out: %s", total - kept, total, reasons)
        if len(self) == 0:
            raise DataValidationError(
                f"{kept} {what} make no whole batch: give more of them, or batch_size={kept} at most"
            )


@chz.chz
class _PreferenceDatasetBuilder(ChatDatasetBuilder):
    def _completion_renderer(self) -> CompletionRenderer:
        config = self.common_config
        return CompletionRenderer(self.renderer, config.max_length, config.train_on_what)

    def _datasets(
        self, train: Table, test: Table | None, render: Callable[[Any], Datums], what: str
    ) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        size = self.common_config.batch_size
        if test is not None and len(test) == 0:
            logger.warning("the held-out data has no rows, and is not evaluated")
            test = None
        dataset = PreferenceDataset(train, render, size, what=what)
        if test is None:
            return dataset, None
        return dataset, PreferenceDataset(test, render, size, keep_rest=True, what=f"held-out {what}")


# --- pairs ------------------------------------------------------------------------------------------------


@chz.chz
class DPODatasetBuilderFromComparisons(_PreferenceDatasetBuilder):
    """A batch has batch_size pairs, twice as many datums. Which of two answers is A does not matter here."""

    comparison_builder: ComparisonDatasetBuilder

    def __call__(self) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        render = self._completion_renderer()

        def pair(row: dict[str, Any]) -> Datums:
            labeled = self.comparison_builder.example_to_labeled_comparison(row)
            if labeled is None:
                raise _LeftOut("no comparisons")
            if labeled.label == "Tie":
                raise _LeftOut("ties")
            won = labeled.comparison if labeled.label == "A" else labeled.comparison.swap()
            if won.completion_A == won.completion_B:
                raise _LeftOut("with twice the same answer")
            sides = (won.completion_A, won.completion_B)
            return [render(won.prompt_conversation, side) for side in sides]

        return self._datasets(*self.comparison_builder.get_train_and_test_datasets(), pair, "pairs")


# --- single answers ---------------------------------------------------------------------------------------


@chz.chz
class LabeledExampleBuilder:
    """Where unpaired examples come from: those to train on, and those held out (or None)."""

    def get_labeled_examples(self) -> tuple[Sequence[LabeledExample], Sequence[LabeledExample] | None]:
        raise NotImplementedError


@chz.chz
class LabeledExamplesFromComparisons(LabeledExampleBuilder):
    """Both sides of every pair, each for itself: the winner is wanted, the loser is not. Ties say nothing."""

    comparison_builder: ComparisonDatasetBuilder

    def get_labeled_examples(self) -> tuple[list[LabeledExample], list[LabeledExample] | None]:
        builder = chz.replace(self.comparison_builder, swap=False)  # both ways would be everything twice
        train, test = builder.get_labeled_comparisons()
        return self._examples(train), None if test is None else self._examples(test)

    def _examples(self, comparisons: list[LabeledComparison]) -> list[LabeledExample]:
        ties = sum(labeled.label == "Tie" for labeled in comparisons)
        if ties:
            logger.warning("%d of %d comparisons are left out: ties", ties, len(comparisons))
        return [
            LabeledExample(
                labeled.comparison.prompt_conversation, completion, is_desirable=labeled.label == side
            )
            for labeled in comparisons
            if labeled.label != "Tie"
            for side, completion in (
                ("A", labeled.comparison.completion_A),
                ("B", labeled.comparison.completion_B),
            )
        ]


@chz.chz
class KTODatasetBuilder(_PreferenceDatasetBuilder):
    """A batch has batch_size examples, each one datum that says whether it is wanted."""

    example_builder: LabeledExampleBuilder

    @chz.validate
    def _check_batch(self) -> None:
        if self.common_config.batch_size < 2:
            raise ConfigurationError(
                "kto compares with answers to other prompts of the batch: batch_size must be at least 2"
            )

    def __call__(self) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        render = self._completion_renderer()

        def single(example: LabeledExample) -> Datums:
            datum = render(example.prompt_conversation, example.completion)
            label = tinker.TensorData(data=[float(example.is_desirable)], dtype="float32", shape=[1])
            return [tinker.Datum(datum.model_input, {**datum.loss_fn_inputs, IS_DESIRABLE: label})]

        return self._datasets(*self.example_builder.get_labeled_examples(), single, "examples")
