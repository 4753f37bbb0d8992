"""A user's own preferences: files of pairs, comparisons, ranked lists or marked answers, checked row by row.

    pairs = open_pairs("my.jsonl")
    print(pairs.report())   # what was read, and which rows were left out and why
    pairs.comparisons[0]

Which columns mean what is told in `pair_rows`.
"""

import functools
import logging
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import chz
import numpy as np

from tinker_cookbook.exceptions import ConfigurationError, DataFormatError, DataValidationError
from tinker_cookbook.preference.dpo_datasets import LabeledExampleBuilder
from tinker_cookbook.preference.pair_rows import FORMATS, PairFormat
from tinker_cookbook.preference.preference_datasets import ComparisonDatasetBuilder, Table
from tinker_cookbook.preference.types import Comparison, LabeledComparison, LabeledExample
from tinker_cookbook.renderers.messages import Message
from tinker_cookbook.supervised.rows import Row, Rows, open_rows

logger = logging.getLogger(__name__)

T = TypeVar("T", LabeledComparison, LabeledExample)

_NAMED = 5  # rows that are named one by one; all are counted
_MOST_HELD_OUT = 200  # if nobody says how many


@dataclass(frozen=True)
class LeftOut:
    where: str  # file and line
    reason: str


@dataclass
class PairRows:
    """What a file says. Of comparisons and examples one is empty: a file has one format."""

    name: str
    format: PairFormat
    num_rows: int
    comparisons: list[LabeledComparison] = field(default_factory=list)
    examples: list[LabeledExample] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    @property
    def num_ties(self) -> int:
        return sum(labeled.label == "Tie" for labeled in self.comparisons)

    def marked(self) -> list[LabeledExample]:
        """Each answer by itself and once, for KTO: the better one of a pair is wanted.

        A tie says nothing of either, and nor do comparisons of which an answer won one and lost another.
        """
        if self.examples:
            return self.examples
        by_answer: dict[str, list[LabeledExample]] = {}
        for example in (side for labeled in self.comparisons for side in _both_sides(labeled)):
            key = repr((example.prompt_conversation, example.completion))
            by_answer.setdefault(key, []).append(example)
        return [same[0] for same in by_answer.values() if len({each.is_desirable for each in same}) == 1]

    def report(self) -> str:
        lines = [f"{self.name}: {self.num_rows} rows of {self.format.name}, {self._found()}"]
        if self.left_out:
            lines.append(f"{len(self.left_out)} rows are left out:")
            lines += [f"  {each.where}: {each.reason}" for each in self.left_out[:_NAMED]]
            if len(self.left_out) > _NAMED:
                reasons = Counter(each.reason for each in self.left_out).most_common(_NAMED)
                listed = "; ".join(f"{reason} ({count})" for reason, count in reasons)
                lines.append(f"  ... the most common reasons of all: {listed}")
        return "\n".join(lines)

    def _found(self) -> str:
        if self.examples:
            wanted = sum(example.is_desirable for example in self.examples)
            return f"{wanted} wanted and {len(self.examples) - wanted} unwanted"
        decided = len(self.comparisons) - self.num_ties
        return f"{decided} pairs with a winner, {self.num_ties} ties"


def open_pairs(path: str) -> PairRows:
    """A file, a folder, or the name of a data set on the hub; an error if nothing in it can be used."""
    rows = open_rows(path)
    readable, left_out = _readable(rows)
    pairs = PairRows(rows.name, _format_of(rows, readable, left_out), len(rows), left_out=left_out)
    for index, row in readable:
        _read(pairs, row, rows.where(index))
    if not pairs.comparisons and not pairs.examples:
        raise DataFormatError(
            f"none of the {len(rows)} rows of {rows.name} can be used; {left_out[0].where}: {left_out[0].reason}"
        )
    return pairs


def _read(pairs: PairRows, row: Row, where: str) -> None:
    try:
        if not pairs.format.fits(row):
            raise DataFormatError(f"it has {_columns([row])}, and needs {pairs.format.needs}")
        found = pairs.format.read(row)
    except DataFormatError as error:
        pairs.left_out.append(LeftOut(where, str(error)))
        return
    for each in found:
        if isinstance(each, LabeledExample):
            pairs.examples.append(each)
        else:
            pairs.comparisons.append(each)


def _readable(rows: Rows) -> tuple[list[tuple[int, Row]], list[LeftOut]]:
    readable: list[tuple[int, Row]] = []
    left_out: list[LeftOut] = []
    for index in range(len(rows)):
        try:
            readable.append((index, rows[index]))
        except DataFormatError as error:
            left_out.append(LeftOut(rows.where(index), str(error)))
    return readable, left_out


def _format_of(rows: Rows, readable: Sequence[tuple[int, Row]], left_out: Sequence[LeftOut]) -> PairFormat:
    """The one format of all rows that have any."""
    first: dict[str, tuple[PairFormat, str]] = {}
    counts: Counter[str] = Counter()
    for index, row in readable:
        fitting = next((known for known in FORMATS if known.fits(row)), None)
        if fitting is not None:
            first.setdefault(fitting.name, (fitting, rows.where(index)))
            counts[fitting.name] += 1
    if len(first) > 1:
        found = "; ".join(
            f"{counts[name]} of {name}, the first {where}" for name, (_, where) in first.items()
        )
        raise DataFormatError(f"{rows.name} mixes formats: {found}. Put each into a file of its own")
    if first:
        return next(iter(first.values()))[0]
    if not readable:
        raise DataFormatError(f"no row of {rows.name} can be read; {left_out[0].where}: {left_out[0].reason}")
    accepted = "; ".join(f"{known.name}: {known.needs}" for known in FORMATS)
    columns = _columns(row for _, row in readable[:100])
    raise DataFormatError(
        f"{rows.name} has {columns}, and no preferences that are known. Accepted are {accepted}"
    )


def _columns(rows: Iterable[Row]) -> str:
    return f"the columns {', '.join(sorted({name for row in rows for name in row})) or '(none)'}"


def _both_sides(labeled: LabeledComparison) -> list[LabeledExample]:
    if labeled.label == "Tie":
        return []
    comparison = labeled.comparison
    return [
        LabeledExample(comparison.prompt_conversation, comparison.completion_A, labeled.label == "A"),
        LabeledExample(comparison.prompt_conversation, comparison.completion_B, labeled.label == "B"),
    ]


# --- as data to train on ----------------------------------------------------------------------------------


@chz.chz
class PairFileBuilder(ComparisonDatasetBuilder):
    """Comparisons of a file of `open_pairs`. A prompt is either trained on or held out, with all its answers."""

    path: str = chz.field(doc="A file, a folder, or the name of a Hugging Face data set")
    test_path: str | None = chz.field(default=None, doc="Held-out pairs, instead of test_size")
    test_size: int | None = chz.field(
        default=0, doc="Pairs of the file to hold out, or a few more; None: a tenth, 200 at most"
    )
    seed: int = chz.field(default=0, doc="Decides which are held out")

    @chz.validate
    def _check(self) -> None:
        if self.test_size is not None and self.test_size < 0:
            raise ConfigurationError(f"test_size={self.test_size} is negative; 0 holds nothing out")
        if self.test_size and self.test_path:
            raise ConfigurationError("test_path and test_size: give one way to hold out")

    @functools.cached_property
    def pairs(self) -> PairRows:
        return open_pairs(self.path)

    @functools.cached_property
    def test_pairs(self) -> PairRows | None:
        return None if self.test_path is None else open_pairs(self.test_path)

    def get_train_and_test_datasets(self) -> tuple[Table, Table | None]:
        for pairs in (self.pairs, self.test_pairs):
            if pairs is not None and not pairs.comparisons:
                raise DataFormatError(
                    f"{pairs.name} has single answers that are marked, and no pairs: learn from them with loss=kto"
                )
        train, test = self._split(self.pairs.comparisons, self.test_pairs and self.test_pairs.comparisons)
        return _as_rows(train), None if test is None else _as_rows(test)

    def example_to_labeled_comparison(self, example: dict) -> LabeledComparison:
        return LabeledComparison(Comparison(**example["comparison"]), example["label"])

    def get_labeled_examples(self) -> tuple[list[LabeledExample], list[LabeledExample] | None]:
        """Answers one by one, for KTO; those of pairs are taken apart."""
        return self._split(self.pairs.marked(), self.test_pairs and self.test_pairs.marked())

    def _split(self, found: list[T], test: list[T] | None) -> tuple[list[T], list[T] | None]:
        count = min(_MOST_HELD_OUT, len(found) // 10) if self.test_size is None else self.test_size
        return (found, test) if test is not None or not count else hold_out(found, count, self.seed)


@chz.chz
class LabeledExamplesFromFile(LabeledExampleBuilder):
    """The answers of such a file one by one, for KTO: marked ones as they are, those of pairs taken apart."""

    file: PairFileBuilder

    def get_labeled_examples(self) -> tuple[list[LabeledExample], list[LabeledExample] | None]:
        return self.file.get_labeled_examples()


def _as_rows(labeled: Iterable[LabeledComparison]) -> list[dict]:
    return [{"comparison": vars(each.comparison), "label": each.label} for each in labeled]


def hold_out(found: Sequence[T], count: int, seed: int) -> tuple[list[T], list[T]]:
    """Whole prompts by lot, until they have `count` of these. What is left to train on keeps its order."""
    by_prompt: dict[Hashable, list[T]] = {}
    for each in found:
        by_prompt.setdefault(_key(_prompt(each)), []).append(each)
    prompts = list(by_prompt)
    test: list[T] = []
    held_out: set[Hashable] = set()
    for number in np.random.default_rng(seed).permutation(len(prompts)):
        if len(test) >= count:
            break
        held_out.add(prompts[number])
        test += by_prompt[prompts[number]]
    if len(held_out) == len(prompts):
        raise DataValidationError(
            f"test_size={count} leaves nothing to train on: there are {len(found)} for {len(prompts)} prompts"
        )
    return [each for each in found if _key(_prompt(each)) not in held_out], test


def _prompt(each: LabeledComparison | LabeledExample) -> list[Message]:
    return (
        each.prompt_conversation if isinstance(each, LabeledExample) else each.comparison.prompt_conversation
    )


def _key(prompt: list[Message]) -> Hashable:
    return repr(prompt)
