import asyncio
import math
import re
from types import SimpleNamespace

import pytest

from tests.tinker_cookbook.rl.tiny import chatml, text_of, tokens_of
from tinker_cookbook.exceptions import EvalError
from tinker_cookbook.preference.types import (
    Comparison,
    ComparisonRendererFromChatRenderer,
    LabeledComparison,
    PreferenceModelFromChatRenderer,
    PreferenceModelFromVerdictLogprob,
)
from tinker_cookbook.renderers import Message

COMPARISON = Comparison(
    [Message(role="user", content="Hello")],
    [Message(role="assistant", content="first")],
    [Message(role="assistant", content="second")],
)


def test_swapping_takes_the_label_along():
    swapped = LabeledComparison(COMPARISON, "A").swap()
    assert (swapped.comparison.completion_A, swapped.label) == (COMPARISON.completion_B, "B")
    assert swapped.swap() == LabeledComparison(COMPARISON, "A")
    assert LabeledComparison(COMPARISON, "Tie").swap().label == "Tie"


def test_a_judge_reads_headings_and_both_answers_in_order():
    prompt = text_of(
        ComparisonRendererFromChatRenderer(chatml()).build_generation_prompt(COMPARISON).to_ints()
    )
    parts = [
        "Hello",
        "==== Completion A ====",
        "first",
        "==== Completion B ====",
        "second",
        "==== Preference ====",
        "<|im_start|>assistant\n",
    ]
    assert re.fullmatch(".*" + ".*".join(map(re.escape, parts)), prompt, re.DOTALL)


@pytest.mark.parametrize("label", ["A", "B", "Tie"])
def test_an_example_ends_with_the_first_token_of_the_label_which_alone_is_learned(label):
    renderer = ComparisonRendererFromChatRenderer(chatml())
    model_input, weights = renderer.to_model_input_weights(LabeledComparison(COMPARISON, label))
    prompt = renderer.build_generation_prompt(COMPARISON).to_ints()
    assert model_input.to_ints() == [*prompt, tokens_of(label)[0]]
    assert weights.tolist() == [0.0] * len(prompt) + [1.0]


@pytest.mark.parametrize(("said", "score"), [("A", -1.0), (" B", 1.0), ("T", 0.0), ("x", 0.0), ("", 0.0)])
def test_what_a_judge_says_is_a_score(said, score, caplog):
    class Client:
        async def sample_async(self, prompt, num_samples, sampling_params):
            assert (num_samples, sampling_params.temperature, sampling_params.max_tokens) == (1, 0.0, 1)
            return SimpleNamespace(sequences=[SimpleNamespace(tokens=tokens_of(said))])

    model = PreferenceModelFromChatRenderer(chatml(), Client())  # pyright: ignore[reportArgumentType]
    assert asyncio.run(model(COMPARISON)) == score
    assert ("not A, B or Tie" in caplog.text) == (said in ("x", ""))


class Verdicts:
    """Gives the last token of a prompt the logprob that is said for it: by verdict and by what is read first."""

    def __init__(self, logprobs: dict[tuple[str, str], float | None]):
        self._logprobs = logprobs

    async def compute_logprobs_async(self, prompt):
        *read, verdict = prompt.to_ints()
        text = text_of(read)
        first = min("first", "second", key=text.index)
        return [None, *[-9.0] * (len(read) - 1), self._logprobs[first, text_of([verdict])]]


# p(A), p(B) and the rest: in the first order 0.2, 0.6; in the other, where the answers are turned, 0.5, 0.25.
LOGPROBS = {
    ("first", "A"): math.log(0.2),
    ("first", "B"): math.log(0.6),
    ("second", "A"): math.log(0.5),
    ("second", "B"): math.log(0.25),
}


def verdict_judge(both_ways: bool, logprobs: dict[tuple[str, str], float | None] | None = None):
    client = Verdicts(dict(LOGPROBS) if logprobs is None else logprobs)
    return PreferenceModelFromVerdictLogprob(chatml(), client, both_ways=both_ways)  # pyright: ignore[reportArgumentType]


def test_a_scalar_judge_says_how_much_likelier_B_is_than_A():
    one_way = verdict_judge(both_ways=False)
    assert asyncio.run(one_way(COMPARISON)) == pytest.approx(0.75 - 0.25)
    assert asyncio.run(one_way(COMPARISON.swap())) == pytest.approx(1 / 3 - 2 / 3)


def test_a_scalar_judge_that_reads_both_orders_turns_exactly_round():
    judge = verdict_judge(both_ways=True)
    score = asyncio.run(judge(COMPARISON))
    log_odds = (math.log(3) + math.log(2)) / 2  # of B here, and of the same answer where it is A
    assert score == pytest.approx(2 / (1 + math.exp(-log_odds)) - 1)
    assert asyncio.run(judge(COMPARISON.swap())) == -score


def test_a_verdict_without_a_logprob_is_an_error():
    judge = verdict_judge(both_ways=False, logprobs=dict(LOGPROBS) | {("first", "B"): None})
    with pytest.raises(EvalError, match="no logprob"):
        asyncio.run(judge(COMPARISON))
