import asyncio
import math
from typing import Any

import pytest

from tests.tinker_cookbook.preference.judges import Policy, TextJudge, comparison, longer
from tests.tinker_cookbook.rl.tiny import END, MODEL
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.preference.comparison_policy_evaluator import ComparisonEvaluator

THOUGHTFUL = comparison("one", "")
THOUGHTFUL.completion_A[0]["content"] = [
    {"type": "thinking", "thinking": "hm"},
    {"type": "text", "text": "xxx"},
]
COMPARISONS = [THOUGHTFUL, comparison("two", "xxx"), comparison("three", "xxx")]
ANSWERS = {"one": f"longer{END}", "two": f"x{END}", "three": "the longest, which never ends"}


def evaluate(
    judge: Any, answers: dict[str, str] = ANSWERS, **options: Any
) -> tuple[dict[str, float], Policy]:
    policy = Policy(answers)
    evaluator = ComparisonEvaluator(lambda: judge, COMPARISONS, "chatml", MODEL, **options)
    return asyncio.run(evaluator(policy)), policy  # pyright: ignore[reportArgumentType]


def test_the_win_rate_with_its_error_and_the_share_that_ended():
    judge = TextJudge(together=6)  # all comparisons, both ways, at the same time
    metrics, _ = evaluate(judge)
    assert metrics == pytest.approx(
        {
            "comparison/win_rate": 2 / 3,
            "comparison/win_rate_stderr": math.sqrt(1 / 3) / math.sqrt(3),  # of 1, 0 and 1
            "comparison/format": 2 / 3,
        }
    )


def favours_first(first: str, second: str) -> float:
    return -1.0


def test_both_ways_is_honoured():
    """W28: a judge that favours its first place is worth nothing asked both ways, and says 0 asked one way."""
    both, one = TextJudge(favours_first), TextJudge(favours_first)
    assert evaluate(both, both_ways=True)[0]["comparison/win_rate"] == 0.5
    assert evaluate(one, both_ways=False)[0]["comparison/win_rate"] == 0.0
    assert (len(both.asked), len(one.asked)) == (6, 3)
    assert all(asked.completion_A[0]["content"] == "xxx" for asked in one.asked)


def test_metrics_carry_the_name():
    metrics, _ = evaluate(TextJudge(), name="against_sft")
    assert {key.split("/")[0] for key in metrics} == {"against_sft"}


def test_the_judge_sees_text_alone_and_what_the_preprocessor_makes_of_it():
    judge = TextJudge()
    evaluate(judge, both_ways=False, content_preprocessor=str.upper)
    assert {str(asked.completion_A[0]["content"]) for asked in judge.asked} == {"XXX"}
    assert {str(asked.completion_B[0]["content"])[:6] for asked in judge.asked} == {"LONGER", "X", "THE LO"}


def test_sampling_is_seeded_by_prompt_and_the_same_each_time():
    first, second = evaluate(TextJudge())[1], evaluate(TextJudge())[1]
    seeds = [params.seed for params in first.params]
    assert len(set(seeds)) == 3
    assert seeds == [params.seed for params in second.params]
    assert {params.max_tokens for params in first.params} == {1024}


class Broken(TextJudge):
    async def __call__(self, comparison: Any) -> float:
        if "one" in str(comparison.prompt_conversation):
            raise ZeroDivisionError("the judge is broken")
        return await super().__call__(comparison)


def test_a_judge_that_fails_raises_its_own_error():
    with pytest.raises(ZeroDivisionError, match="the judge is broken"):
        evaluate(Broken(longer))


def test_a_win_rate_needs_comparisons():
    with pytest.raises(ConfigurationError, match="no comparisons"):
        ComparisonEvaluator(TextJudge, [], "chatml", MODEL)
