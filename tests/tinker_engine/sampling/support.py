"""Real decoders with small random weights, and the few things every test of sampling does with them."""

import random
from functools import cache
from typing import Any

import torch
from transformers import PreTrainedModel

from tests.tinker_engine.families import make_decoder, make_reference
from tinker_engine.model.decoder import Decoder
from tinker_engine.model.lora import Adapter, LoraSpec
from tinker_engine.sampling.request import Ticket
from tinker_engine.sampling.sampler import Sampler
from tinker_engine.sampling.types import SampledSequence, SampleRequest, SampleResult, SamplingParams

FAMILY = "llama3-rope"  # where one family says as much as all
VOCABULARY = 131
CONTEXT = 512
SAME = 1e-5  # logprobs that differ only in how the sums were grouped


# Of these the widths are such that our kernels compute them; the others are torch's.
_BY_KERNELS: dict[str, Any] = {"hidden_size": 48, "intermediate_size": 80, "head_dim": 32}
_WITH_KERNELS = (FAMILY, "llama-biases", "qwen3", "smollm2")


@cache
def reference_of(family: str) -> PreTrainedModel:
    return make_reference(family, **(_BY_KERNELS if family in _WITH_KERNELS else {}))


@cache
def decoder_of(family: str) -> Decoder:
    return make_decoder(reference_of(family))


@cache
def adapter_of(family: str, seed: int) -> Adapter:
    """A snapshot that changes the model clearly: B is not zero."""
    return trained_like(decoder_of(family), seed).snapshot()


def trained_like(decoder: Decoder, seed: int, scale: float = 0.05, rank: int = 4) -> Adapter:
    lora = LoraSpec(rank=rank, seed=seed)
    adapter = Adapter.initialised(decoder.spec, lora, device=decoder.device, dtype=decoder.dtype)
    noise = torch.randn(adapter.flat.shape, generator=torch.Generator().manual_seed(seed))
    adapter.flat.add_(noise, alpha=scale)
    return adapter


def random_prompt(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(VOCABULARY), k=length)


def make_request(
    prompt: list[int], max_tokens: int = 24, seed: int | None = 1, **changes: Any
) -> SampleRequest:
    """One that never stops early. Names that SamplingParams has go there, others to the request."""
    in_params = {
        name: changes.pop(name) for name in ("stop", "temperature", "top_k", "top_p") if name in changes
    }
    settings: dict[str, Any] = {"stop": []} | in_params
    return SampleRequest(prompt, SamplingParams(max_tokens=max_tokens, seed=seed, **settings), **changes)


def sample_one(sampler: Sampler, wanted: SampleRequest) -> SampledSequence:
    (sequence,) = sampler.sample([wanted])[0].sequences
    return sequence


def finish(sampler: Sampler, *tickets: Ticket, most_steps: int = 3000) -> list[SampleResult]:
    """Step until the tickets are done; a sampler that gets stuck fails here."""
    for _ in range(most_steps):
        if all(ticket.done for ticket in tickets):
            return [ticket.result for ticket in tickets]
        check_books(sampler)
        sampler.step()
    raise AssertionError(f"not done after {most_steps} steps: {sampler.scheduler.waiting}")


def assert_same(found: SampledSequence, expected: SampledSequence) -> None:
    assert found.tokens == expected.tokens
    assert found.stop_reason == expected.stop_reason
    torch.testing.assert_close(
        torch.tensor(found.logprobs), torch.tensor(expected.logprobs), atol=SAME, rtol=SAME
    )


def check_books(sampler: Sampler) -> None:
    """What must hold between any two steps."""
    cache, scheduler = sampler.cache, sampler.scheduler
    assert cache.used <= cache.budget
    assert cache.reserved == sum(prefill.reserved for prefill in scheduler.prefills)
    for row in scheduler.rows:
        assert row.bucket is not None
        assert cache.buckets[row.bucket.capacity] is row.bucket
        own = row.bucket.lengths[row.slot]
        shared = len(row.prefix) if row.prefix is not None else 0
        assert shared + own == row.context_length - 1  # the newest token is computed in the next step
    places = {(row.slot, id(row.bucket)) for row in scheduler.rows}
    assert len(places) == len(scheduler.rows) == sum(len(bucket.lengths) for bucket in cache.buckets.values())
    readers = sum(row.prefix is not None for row in scheduler.rows) + len(scheduler.prefills)
    in_progress = {id(prefill.prefix): prefill.prefix for prefill in scheduler.prefills}
    known = {id(row.prefix): row.prefix for row in scheduler.rows if row.prefix is not None} | in_progress
    assert sum(prefix.readers for prefix in known.values()) == readers


def assert_empty(sampler: Sampler) -> None:
    """Nothing is left but prefixes that nobody reads, and those can all go."""
    cache = sampler.cache
    assert sampler.idle
    assert cache.reserved == 0
    assert not any(bucket.lengths for bucket in cache.buckets.values())
    cache.drop_empty()
    assert cache.used == cache.prefixes.tokens
    assert cache.make_room(cache.budget)
    assert (cache.used, len(cache.prefixes)) == (0, 0)
