import asyncio
import math
from typing import Any

import pytest

from tests.tinker_cookbook.preference.judges import TextJudge, comparison, longer
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.preference.judge_evaluator import JudgeEvaluator
from tinker_cookbook.preference.types import Label, LabeledComparison

ANY_CLIENT: Any = None


def labeled(first: str, second: str, label: Label) -> LabeledComparison:
    return LabeledComparison(comparison("p", first, second), label)


# The longer one is better, but for the last, where the data says otherwise.
DECIDED = [
    labeled("xx", "x", "A"),
    labeled("x", "xxx", "B"),
    labeled("x", "xx", "B"),
    labeled("x", "xx", "A"),
]


def measure(judge: TextJudge, comparisons=DECIDED, **options) -> dict[str, float]:
    return asyncio.run(JudgeEvaluator(comparisons, lambda _: judge, **options)(ANY_CLIENT))


def test_accuracy_is_over_both_orders_and_its_error_over_comparisons():
    metrics = measure(TextJudge(longer, together=8))
    assert metrics == pytest.approx(
        {
            "judge/accuracy": 0.75,
            "judge/accuracy_stderr": 0.5 / math.sqrt(4),  # standard deviation of 1, 1, 1, 0
            "judge/says_A": 0.5,
            "judge/consistent": 1.0,
        }
    )


def test_a_judge_that_favours_a_place_is_found_out():
    metrics = measure(TextJudge(lambda first, second: -0.5), name="rm")
    assert metrics["rm/accuracy"] == 0.5
    assert metrics["rm/accuracy_stderr"] == 0.0
    assert (metrics["rm/says_A"], metrics["rm/consistent"]) == (1.0, 0.0)


def test_to_name_no_winner_is_wrong():
    assert measure(TextJudge(lambda first, second: 0.0))["judge/accuracy"] == 0.0


def test_ties_are_measured_apart():
    ties = [labeled("x", "y", "Tie"), labeled("x", "yyy", "Tie")]
    metrics = measure(TextJudge(longer), [*DECIDED, *ties])
    assert metrics["judge/accuracy"] == 0.75
    assert metrics["judge/tie_score"] == 0.5
    assert measure(TextJudge(longer), ties) == {"judge/tie_score": 0.5}


def test_something_must_be_held_out():
    with pytest.raises(ConfigurationError, match="no comparisons"):
        measure(TextJudge(), [])
