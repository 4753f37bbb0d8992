"""What the sampler says of a token, the trainer says too; and a snapshot stays what it was."""

from collections.abc import Sequence

import pytest
import torch

from tests.tinker_engine.families import FAMILIES
from tests.tinker_engine.sampling.conftest import MakeSampler
from tests.tinker_engine.sampling.support import (
    FAMILY,
    assert_same,
    decoder_of,
    finish,
    make_request,
    random_prompt,
    trained_like,
)
from tinker_engine.model.lora import Adapter
from tinker_engine.sampling.types import SampledSequence
from tinker_engine.training.trainer import LoraRun, Trainer
from tinker_engine.training.types import AdamParams, Datum

PROMPTS = [random_prompt(0, 30), random_prompt(1, 7), [*random_prompt(0, 30), 5, 6]]


def policy_datum(prompt: list[int], sequence: SampledSequence) -> Datum:
    """Advantage 1 for what was sampled, none for the prompt."""
    tokens, before = [*prompt, *sequence.tokens], len(prompt) - 1
    return Datum(
        tokens[:-1],
        {
            "target_tokens": torch.tensor(tokens[1:]),
            "logprobs": [0.0] * before + sequence.logprobs,
            "advantages": [0.0] * before + [1.0] * len(sequence.tokens),
        },
    )


def sampled_data(make_sampler: MakeSampler, family: str, *adapters: Adapter | None) -> list[list[Datum]]:
    """Of each adapter, all sampled together; the cache is so small that some are sent back and recomputed."""
    sampler = make_sampler(family, cache_tokens=700, prefill_tokens=20)
    requests = [make_request(prompt, 35, num_samples=5, adapter=a) for a in adapters for prompt in PROMPTS]
    results = iter(sampler.sample(requests))
    return [[policy_datum(p, s) for p in PROMPTS for s in next(results).sequences] for _ in adapters]


def largest_gap(data: Sequence[Datum], logprobs: Sequence[torch.Tensor]) -> tuple[float, int]:
    """Over the sampled tokens, and how many they are."""
    gaps: list[torch.Tensor] = []
    for datum, found in zip(data, logprobs, strict=True):
        said, sampled = (torch.tensor(datum.loss_fn_inputs[name]) for name in ("logprobs", "advantages"))
        gaps.append((said - found)[sampled > 0].abs())
    return float(torch.cat(gaps).max()), sum(map(len, gaps))


@pytest.mark.parametrize("family", FAMILIES)
def test_sampler_and_trainer_agree(family: str, make_sampler: MakeSampler):
    trainer = Trainer(decoder_of(family))
    run = LoraRun(trained_like(trainer.decoder, 5))
    snapshot, tokens = run.adapter.snapshot(), 0
    of_base, of_adapter = sampled_data(make_sampler, family, None, snapshot)
    for adapter, data in ((None, of_base), (snapshot, of_adapter)):
        output = trainer.forward(adapter, data, "importance_sampling")
        gap, count = largest_gap(data, output.logprobs)
        assert gap < 1e-4
        assert output.metrics["logprob_gap:max"] == pytest.approx(gap, abs=1e-7)
        tokens += count
    metrics = trainer.forward_backward(run, of_adapter, "importance_sampling").metrics
    assert metrics["logprob_gap:max"] < 1e-4
    assert metrics["ratio:mean"] == pytest.approx(1, abs=1e-4)
    assert tokens >= 1000


def test_the_adapter_matters(make_sampler: MakeSampler):
    """Or the agreement above would say nothing about adapters."""
    trainer = Trainer(decoder_of(FAMILY))
    (data,) = sampled_data(make_sampler, FAMILY, trained_like(trainer.decoder, 5).snapshot())
    gap, _ = largest_gap(data, trainer.forward(None, data, "importance_sampling").logprobs)
    assert gap > 0.5


def test_a_snapshot_never_changes(make_sampler: MakeSampler):
    trainer = Trainer(decoder_of(FAMILY))
    run = LoraRun(trained_like(trainer.decoder, 5))
    snapshot = run.adapter.snapshot()
    wanted = make_request(PROMPTS[0], 20, num_samples=2, adapter=snapshot)
    (untouched,) = make_sampler().sample([wanted])

    sampler = make_sampler(prefill_tokens=8)
    ticket = sampler.submit(wanted)
    lesson = Datum(PROMPTS[1], {"target_tokens": [*PROMPTS[1][1:], 3], "weights": [1.0] * len(PROMPTS[1])})
    while not ticket.done:
        trainer.forward_backward(run, [lesson], "cross_entropy")
        trainer.optim_step(run, AdamParams(learning_rate=0.01))
        sampler.step()
    for found, expected in zip(ticket.result.sequences, untouched.sequences, strict=True):
        assert_same(found, expected)

    trained = sampler.submit(make_request(PROMPTS[0], 20, adapter=run.adapter.snapshot()))
    (after,) = finish(sampler, trained)
    assert after.prompt_cache_hit_tokens == 0
    assert after.sequences[0].tokens != untouched.sequences[0].tokens
