"""Samples on the way, for people to read."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest
import tinker

from tests.tinker_cookbook.supervised.numbers import TINY
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.supervised.sample_evaluator import SampleEvaluator
from tinker_cookbook.tokenizer_utils import get_tokenizer
from tinker_cookbook.utils import logtree


class Parrot:
    """Says the same to everybody, and remembers what it was asked."""

    def __init__(self, answer: str, stop_reason: str = "stop"):
        self._tokens = get_tokenizer(TINY).encode(answer)
        self._stop_reason = stop_reason
        self.asked: list[str] = []
        self.params: tinker.SamplingParams | None = None

    async def sample_async(
        self, prompt: tinker.ModelInput, num_samples: int, sampling_params: tinker.SamplingParams
    ) -> Any:
        self.asked.append(get_tokenizer(TINY).decode(prompt.to_ints()))
        self.params = sampling_params
        return SimpleNamespace(
            sequences=[SimpleNamespace(tokens=self._tokens, stop_reason=self._stop_reason)]
        )


def evaluated(examples: list[Any], parrot: Parrot, **options: Any) -> tuple[dict[str, float], str]:
    evaluator = SampleEvaluator(examples, get_renderer("chatml", get_tokenizer(TINY)), **options)
    with logtree.init_trace("samples") as page:
        metrics = asyncio.run(evaluator(parrot))  # pyright: ignore[reportArgumentType]
    return metrics, page.get_html()


TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "One?"},
    {"role": "assistant", "content": "1."},
    {"role": "user", "content": "Two?"},
    {"role": "assistant", "content": "2."},
]


def test_the_last_answer_of_a_conversation_is_left_to_the_model(caplog):
    parrot = Parrot("Nevermore.<|im_end|>")
    with caplog.at_level(logging.INFO):
        metrics, page = evaluated([TALK], parrot, max_tokens=7)
    assert parrot.asked[0].endswith("user\nTwo?<|im_end|>\n<|im_start|>assistant\n")
    assert "1." in parrot.asked[0]
    assert parrot.params is not None
    assert (parrot.params.max_tokens, parrot.params.temperature) == (7, 0.0)
    assert "sample: Two?\n  → Nevermore." in caplog.text
    assert "Nevermore." in page
    assert "Be brief." in page
    assert "2." in page
    assert metrics["samples/ended"] == 1.0


def test_an_answer_that_was_cut_off_is_shown_and_counted():
    metrics, page = evaluated([TALK], Parrot("For ever and", "length"), name="talk")
    assert metrics["talk/ended"] == 0.0
    assert metrics["talk/tokens"] > 0
    assert "For ever and" in page


def test_text_is_gone_on_with():
    parrot = Parrot("there was<|im_end|>")
    evaluated(["Once upon a time there was a king, and he was very old and very wise indeed. " * 3], parrot)
    assert parrot.asked[0].startswith("Once upon")
    assert "wise indeed. Once" not in parrot.asked[0]


@pytest.mark.parametrize(("limit", "count"), [(None, 1), (5, 0)])
def test_prompts_that_do_not_fit_are_left_out(limit, count):
    parrot = Parrot("x")
    metrics, _ = evaluated([TALK], parrot, max_prompt_tokens=limit)
    assert len(parrot.asked) == count
    assert bool(metrics) == bool(count)
