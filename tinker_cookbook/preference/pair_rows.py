"""What a row of somebody's preference data says: comparisons, or one answer that is marked.

- Pairs: `chosen` and `rejected`. Each is text, a message or a list of messages; the prompt is beside them (`prompt`,
  `instruction` or `question` with an `input`; `messages` or `conversations`) or is what both begin with, also as a
  transcript of "Human:" and "Assistant:" turns. Equal `score_chosen` and `score_rejected` are a tie.
- Comparisons: `comparison` (prompt_conversation, completion_A, completion_B) and `label`, one of A, B and Tie.
- Ranked lists: the answers under `ranking` or `responses`, the best first, or as `scores` say; equal scores are a tie.
- Marked answers, which KTO learns from: `label` or `kto_tag`, true or false, beside a prompt and its `completion` or a
  conversation whose last message it is about.

A `system` column is the system message of the prompt.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

from tinker_cookbook.exceptions import DataFormatError
from tinker_cookbook.preference.conversations import (
    HISTORIES,
    Messages,
    as_completion,
    prompt_of,
    shared_prompt,
    whole_conversation,
)
from tinker_cookbook.preference.types import Comparison, Label, LabeledComparison, LabeledExample
from tinker_cookbook.supervised.rows.source import Row

Preferences = Sequence[LabeledComparison] | Sequence[LabeledExample]

RANKED = ("ranking", "responses")
MARKS = ("label", "kto_tag")
COMPLETIONS = ("completion", "response", "output", "answer")
_SCORES = (("score_chosen", "score_rejected"), ("chosen_score", "rejected_score"))
_TRUE, _FALSE = (True, 1, "true", "True", "1"), (False, 0, "false", "False", "0")


@dataclass(frozen=True)
class PairFormat:
    """`read` gives what one row says; DataFormatError, with the reason alone, if it does not fit."""

    name: str
    needs: str  # for people
    fits: Callable[[Row], bool]
    read: Callable[[Row], Preferences]


def read_pair(row: Row) -> list[LabeledComparison]:
    chosen, rejected = _present(row, "chosen"), _present(row, "rejected")
    whole = [whole_conversation(each, name) for each, name in ((chosen, "chosen"), (rejected, "rejected"))]
    if whole[0] is not None and whole[1] is not None:
        prompt, better, worse = shared_prompt(whole[0], whole[1])
        prompt = prompt_of(row, within=prompt)
    else:
        prompt = prompt_of(row)
        better, worse = as_completion(chosen, "chosen"), as_completion(rejected, "rejected")
    if better == worse:
        raise DataFormatError("'chosen' and 'rejected' are the same")
    return [LabeledComparison(Comparison(prompt, better, worse), "Tie" if _same_score(row) else "A")]


def _same_score(row: Row) -> bool:
    return any(row.get(one) is not None and row.get(one) == row.get(other) for one, other in _SCORES)


def read_comparison(row: Row) -> list[LabeledComparison]:
    label, sides = row["label"], row["comparison"]
    if label not in get_args(Label):
        raise DataFormatError(f"'label' must be one of {', '.join(get_args(Label))}, not {label!r}")
    if not isinstance(sides, dict):
        raise DataFormatError("'comparison' must be an object")
    prompt = prompt_of({"prompt": _present(sides, "prompt_conversation")})
    first, second = (as_completion(_present(sides, name), name) for name in ("completion_A", "completion_B"))
    if first == second and label != "Tie":
        raise DataFormatError("'completion_A' and 'completion_B' are the same, and one is to be better")
    return [LabeledComparison(Comparison(prompt, first, second), label)]


def read_ranking(row: Row) -> list[LabeledComparison]:
    """All pairs of the answers, the one that stands before the other as A."""
    column = next(name for name in RANKED if name in row)
    answers = row[column]
    if not isinstance(answers, list) or len(answers) < 2:
        raise DataFormatError(f"{column!r} must be a list of two answers or more, the best first")
    if any(isinstance(answer, int) for answer in answers):
        raise DataFormatError(f"{column!r} must be the answers themselves, the best first, and no numbers")
    ranked = [as_completion(answer, f"answer {number}") for number, answer in enumerate(answers, 1)]
    for (i, one), (j, other) in itertools.combinations(enumerate(ranked, 1), 2):
        if one == other:
            raise DataFormatError(f"answers {i} and {j} are the same")
    scores = _scores(row, len(ranked))
    prompt = prompt_of(row)
    order = sorted(range(len(ranked)), key=lambda i: -scores[i])
    return [
        LabeledComparison(Comparison(prompt, ranked[i], ranked[j]), "Tie" if scores[i] == scores[j] else "A")
        for i, j in itertools.combinations(order, 2)
    ]


def _scores(row: Row, count: int) -> list[float]:
    """Without scores, the places in the list are as good."""
    scores = row.get("scores")
    if scores is None:
        return [float(-place) for place in range(count)]
    if not isinstance(scores, list) or len(scores) != count:
        raise DataFormatError(f"'scores' must be a list of {count} numbers, one for each answer")
    if not all(isinstance(score, int | float) for score in scores):
        raise DataFormatError("'scores' must be numbers")
    return [float(score) for score in scores]


def read_marked(row: Row) -> list[LabeledExample]:
    is_wanted = _mark(row)
    column = next((name for name in COMPLETIONS if row.get(name) is not None), None)
    if column is not None:
        return [LabeledExample(prompt_of(row), as_completion(row[column], column), is_wanted)]
    column = next(name for name in HISTORIES if name in row)
    conversation = prompt_of({column: row[column], "system": row.get("system")}, is_whole=True)
    return [LabeledExample(conversation[:-1], _last(conversation, column), is_wanted)]


def _last(conversation: Messages, column: str) -> Messages:
    if conversation[-1]["role"] != "assistant" or len(conversation) < 2:
        raise DataFormatError(f"{column!r} must end with an assistant's answer to something")
    return as_completion(conversation[-1:], column)


def _mark(row: Row) -> bool:
    name = next(name for name in MARKS if name in row)
    mark = row[name]
    if mark not in (*_TRUE, *_FALSE):  # a CSV file has them as text
        raise DataFormatError(f"{name!r} must be true or false, not {mark!r}")
    return mark in _TRUE


def _present(row: Row, name: str) -> object:
    if row.get(name) is None:
        raise DataFormatError(f"no {name!r}")
    return row[name]


def _has_pair(row: Row) -> bool:
    return "chosen" in row and "rejected" in row


def _has_comparison(row: Row) -> bool:
    return "comparison" in row and "label" in row


def _has_ranking(row: Row) -> bool:
    return any(name in row for name in RANKED) and not _is_marked(row)


def _is_marked(row: Row) -> bool:
    answer = (*COMPLETIONS, *HISTORIES)
    return any(name in row for name in MARKS) and any(name in row for name in answer)


PAIRS = PairFormat("pairs", "chosen and rejected, with a prompt", _has_pair, read_pair)
COMPARISONS = PairFormat(
    "comparisons",
    "comparison (prompt_conversation, completion_A, completion_B) and label",
    _has_comparison,
    read_comparison,
)
RANKINGS = PairFormat(
    "ranked lists", "prompt and ranking (answers, the best first)", _has_ranking, read_ranking
)
MARKED = PairFormat("marked answers", "prompt, completion and label (true or false)", _is_marked, read_marked)

FORMATS = (COMPARISONS, PAIRS, RANKINGS, MARKED)
"""A row is of the first that fits."""
