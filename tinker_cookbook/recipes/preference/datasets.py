"""Published sets of comparisons, by name: from the hub, or from files of the same rows.

Ties are labeled as such: a judge can learn them, and training on pairs leaves them out. A row that cannot be used is
left out too, with a word in the log about the first of them.
"""

import functools
import logging
import re
from collections.abc import Sequence
from typing import Any, ClassVar

import chz
import numpy as np

from tinker_cookbook.exceptions import ConfigurationError, DataFormatError
from tinker_cookbook.preference.conversations import as_completion, shared_prompt
from tinker_cookbook.preference.pair_rows import read_pair
from tinker_cookbook.preference.preference_datasets import ComparisonDatasetBuilder, Table
from tinker_cookbook.preference.types import Comparison, Label, LabeledComparison
from tinker_cookbook.renderers.messages import Message, get_text_content
from tinker_cookbook.supervised.rows import Row, open_rows
from tinker_cookbook.supervised.rows.chat import messages_from_json

logger = logging.getLogger(__name__)


class Selected:
    """Some rows of a table, in an order of their own."""

    def __init__(self, rows: Table, order: Sequence[int] | np.ndarray):
        self._rows = rows
        self._order = order

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int, /) -> Any:
        return self._rows[int(self._order[index])]


@chz.chz
class PublishedComparisonBuilder(ComparisonDatasetBuilder):
    """What they share. A subclass names the set and reads a row; DataFormatError there leaves the row out."""

    hub_name: ClassVar[str]
    subset: ClassVar[str | None] = None
    test_split: ClassVar[str | None] = None  # None: the set has none, and rows of it are held out

    path: str | None = chz.field(default=None, doc="File or folder of such rows; None: the set on the hub")
    test_path: str | None = chz.field(default=None, doc="The same, held out")
    test_size: int = chz.field(
        default=1024, doc="Rows held out; a tenth, if that is less and they are taken from those to train on"
    )

    def get_train_and_test_datasets(self) -> tuple[Table, Table | None]:
        """Both in an order of their own, which is always the same."""
        train = self._open(self.path, "train")
        order = np.random.default_rng(0).permutation(len(train))
        if self.path is None and self.test_split is not None:
            test = self._open(None, self.test_split)
        elif self.test_path is not None:
            test = self._open(self.test_path, "train")
        else:
            held_out = min(self.test_size, len(train) // 10)
            return Selected(train, order[held_out:]), _some(train, order[:held_out])
        chosen = np.random.default_rng(0).permutation(len(test))[: self.test_size]
        return Selected(train, order), _some(test, chosen)

    def example_to_labeled_comparison(self, example: dict) -> LabeledComparison | None:
        try:
            return self._labeled_comparison(example)
        except DataFormatError as error:
            self._warn_once(str(error))
            return None

    def _labeled_comparison(self, row: Row) -> LabeledComparison:
        raise NotImplementedError

    def _open(self, path: str | None, split: str) -> Table:
        return open_rows(path or self.hub_name, subset=None if path else self.subset, split=split)

    @functools.cached_property
    def _warned(self) -> set[str]:
        return set()

    def _warn_once(self, reason: str) -> None:
        if reason not in self._warned:
            self._warned.add(reason)
            logger.warning("%s: rows are left out that do not fit: %s", self.path or self.hub_name, reason)


def _some(rows: Table, order: np.ndarray) -> Table | None:
    return Selected(rows, order) if len(order) else None


def _text(row: Row, name: str) -> str:
    text = row.get(name)
    if not isinstance(text, str) or not text.strip():
        raise DataFormatError(f"no text in {name!r}")
    return text


def _better(first: Any, second: Any) -> Label:
    """By two numbers, of which the larger is better."""
    return "Tie" if first == second else "A" if first > second else "B"


# --- the sets ---------------------------------------------------------------------------------------------


@chz.chz
class HHHComparisonBuilder(PublishedComparisonBuilder):
    """Helpful and harmless, 161,000 pairs: two transcripts that must not differ before the last answer."""

    hub_name = "Anthropic/hh-rlhf"
    test_split = "test"

    def _labeled_comparison(self, row: Row) -> LabeledComparison:
        return read_pair({name: _text(row, name) for name in ("chosen", "rejected")})[0]


@chz.chz
class Tulu38BComparisonBuilder(PublishedComparisonBuilder):
    """270,000 pairs of conversations, chosen by rating."""

    hub_name = "allenai/llama-3.1-tulu-3-8b-preference-mixture"

    def _labeled_comparison(self, row: Row) -> LabeledComparison:
        chosen, rejected = (messages_from_json(row.get(name), name) for name in ("chosen", "rejected"))
        comparison = Comparison(*shared_prompt(chosen, rejected))
        ratings = row.get("chosen_rating"), row.get("rejected_rating")
        is_tie = None not in ratings and ratings[0] == ratings[1]
        return LabeledComparison(comparison, "Tie" if is_tie else "A")


@chz.chz
class UltraFeedbackComparisonBuilder(PublishedComparisonBuilder):
    """61,000 instructions, each with a better and a worse answer, as rated."""

    hub_name = "argilla/ultrafeedback-binarized-preferences"

    def _labeled_comparison(self, row: Row) -> LabeledComparison:
        comparison = _pair(
            _user(_text(row, "instruction")), _text(row, "chosen_response"), _text(row, "rejected_response")
        )
        ratings = row.get("chosen_avg_rating"), row.get("rejected_avg_rating")
        is_tie = None not in ratings and ratings[0] == ratings[1]
        return LabeledComparison(comparison, "Tie" if is_tie else "A")


@chz.chz
class HelpSteer3ComparisonBuilder(PublishedComparisonBuilder):
    """40,000 comparisons by people, from -3, the first is much better, over 0 to 3."""

    hub_name = "nvidia/HelpSteer3"
    subset = "preference"
    test_split = "validation"

    def _labeled_comparison(self, row: Row) -> LabeledComparison:
        preference = row.get("overall_preference")
        if not isinstance(preference, int | float):
            raise DataFormatError("no number in 'overall_preference'")
        context = messages_from_json(row.get("context"), "context")
        comparison = _pair(context, _text(row, "response1"), _text(row, "response2"))
        return LabeledComparison(comparison, _better(0, preference))


@chz.chz
class ArenaComparisonBuilder(PublishedComparisonBuilder):
    """140,000 votes between two models; answers that are both bad are as good as each other."""

    hub_name = "lmarena-ai/arena-human-preference-140k"
    winners: ClassVar[dict[str, Label]] = {"model_a": "A", "model_b": "B", "tie": "Tie", "both_bad": "Tie"}

    def _labeled_comparison(self, row: Row) -> LabeledComparison:
        winner = row.get("winner")
        if winner not in self.winners:
            raise DataFormatError(f"'winner' is {winner!r} and none of {', '.join(self.winners)}")
        sides = [messages_from_json(row.get(name), name) for name in ("conversation_a", "conversation_b")]
        first, second = ([_text_only(message) for message in side] for side in sides)
        return LabeledComparison(Comparison(*shared_prompt(first, second)), self.winners[winner])


@chz.chz
class HelpSteer2ComparisonBuilder(PublishedComparisonBuilder):
    """Answers with marks from 0 to 4: the best of a prompt against its worst, by helpfulness."""

    hub_name = "nvidia/HelpSteer2"

    def _open(self, path: str | None, split: str) -> Table:
        rows = super()._open(path, split)
        by_prompt: dict[Any, list[Row]] = {}
        for number in range(len(rows)):
            by_prompt.setdefault(rows[number].get("prompt"), []).append(rows[number])
        pairs = [answers for answers in by_prompt.values() if len(answers) > 1]
        if not pairs:
            raise ConfigurationError(f"{path or self.hub_name} has no prompt with two answers")
        return [{"prompt": answers[0]["prompt"], "answers": answers} for answers in pairs]

    def _labeled_comparison(self, row: Row) -> LabeledComparison:
        for answer in row["answers"]:
            if not isinstance(answer.get("helpfulness"), int | float):
                raise DataFormatError("no number in 'helpfulness'")
        ranked = sorted(row["answers"], key=lambda answer: -answer["helpfulness"])
        best, worst = ranked[0], ranked[-1]
        comparison = _pair(_turns(_text(row, "prompt")), _text(best, "response"), _text(worst, "response"))
        return LabeledComparison(comparison, _better(best["helpfulness"], worst["helpfulness"]))


COMPARISON_BUILDERS: dict[str, type[PublishedComparisonBuilder]] = {
    "hhh": HHHComparisonBuilder,
    "helpsteer3": HelpSteer3ComparisonBuilder,
    "ultrafeedback": UltraFeedbackComparisonBuilder,
    "arena": ArenaComparisonBuilder,
    "helpsteer2": HelpSteer2ComparisonBuilder,
    "tulu38b": Tulu38BComparisonBuilder,
}


def _user(text: str) -> list[Message]:
    return [Message(role="user", content=text)]


def _pair(prompt: list[Message], first: str, second: str) -> Comparison:
    if first == second:
        raise DataFormatError("both answers are the same")
    return Comparison(prompt, as_completion(first, "the first answer"), as_completion(second, "the second"))


_EARLIER_TURN = re.compile(r"\n?<extra_id_1>(User|Assistant)\n")


def _turns(prompt: str) -> list[Message]:
    """HelpSteer2 writes earlier turns into the prompt, between markers; the first is the user's and has none."""
    pieces = ["User", *_EARLIER_TURN.split(prompt)]
    turns = zip(pieces[::2], pieces[1::2], strict=True)
    return [Message(role=role.lower(), content=text) for role, text in turns]


def _text_only(message: Message) -> Message:
    content = message["content"]
    if isinstance(content, str):
        return message
    if any(part["type"] != "text" for part in content):
        raise DataFormatError("a conversation with images")
    return Message(role=message["role"], content=get_text_content(message))
