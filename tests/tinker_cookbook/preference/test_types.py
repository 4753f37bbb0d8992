import asyncio
import re
from types import SimpleNamespace

import pytest

from tests.tinker_cookbook.rl.tiny import chatml, text_of, tokens_of
from tinker_cookbook.preference.types import (
    Comparison,
    ComparisonRendererFromChatRenderer,
    LabeledComparison,
    PreferenceModelFromChatRenderer,
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


@pytest.mark.parametrize(("said", "score"), [("A", -1.0), (" B", 1.0), ("x", 0.0)])
def test_what_a_judge_says_is_a_score(said, score, caplog):
    class Client:
        async def sample_async(self, prompt, num_samples, sampling_params):
            assert (num_samples, sampling_params.temperature, sampling_params.max_tokens) == (1, 0.0, 1)
            return SimpleNamespace(sequences=[SimpleNamespace(tokens=tokens_of(said))])

    model = PreferenceModelFromChatRenderer(chatml(), Client())  # pyright: ignore[reportArgumentType]
    assert asyncio.run(model(COMPARISON)) == score
    assert ("not A, B or Tie" in caplog.text) == (said == "x")
