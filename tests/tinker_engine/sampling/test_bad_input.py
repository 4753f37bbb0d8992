"""Every request that makes no sense is refused when it arrives, by the name of what is wrong with it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.tinker_engine.sampling.conftest import MakeSampler
from tests.tinker_engine.sampling.support import (
    CONTEXT,
    FAMILY,
    VOCABULARY,
    adapter_of,
    assert_empty,
    assert_same,
    decoder_of,
    finish,
    make_request,
    random_prompt,
    sample_one,
    trained_like,
)
from tinker_engine.errors import InputError, NonFiniteError
from tinker_engine.sampling.sampler import Sampler
from tinker_engine.sampling.types import SampleRequest, SamplingParams

GOOD = make_request([1, 2, 3], 4)

BAD_PARAMS: list[tuple[str, Any]] = [
    ("max_tokens", 0),
    ("max_tokens", -3),
    ("max_tokens", 2.5),
    ("seed", 1.5),
    ("seed", "7"),
    ("temperature", -0.1),
    ("temperature", float("nan")),
    ("temperature", float("inf")),
    ("temperature", 1e-9),
    ("top_k", 0),
    ("top_k", -2),
    ("top_k", 1.5),
    ("top_p", 0.0),
    ("top_p", -0.5),
    ("top_p", 1.5),
    ("top_p", float("nan")),
    ("stop", ""),
    ("stop", ["a", ""]),
    ("stop", [VOCABULARY]),
    ("stop", [-1]),
    ("stop", [1.5]),
    ("stop", [None]),
    ("stop", [True]),
    ("stop", [["a"]]),
    ("stop", [b"a"]),
    ("stop", 5),
    ("stop", b"ab"),
    ("stop", "\ud83d"),
]

BAD_REQUESTS: list[tuple[str, Any]] = [
    ("prompt", []),
    ("prompt", random_prompt(0, CONTEXT)),
    ("prompt", random_prompt(0, CONTEXT + 1)),
    ("prompt", [1, VOCABULARY]),
    ("prompt", [-1, 1]),
    ("prompt", [1.0, 2.0]),
    ("prompt", [[1, 2], [3, 4]]),
    ("prompt", ["a"]),
    ("num_samples", 0),
    ("num_samples", -1),
    ("num_samples", 4097),
    ("topk_prompt_logprobs", -1),
    ("topk_prompt_logprobs", 1025),
    ("topk_sample_logprobs", -1),
    ("topk_sample_logprobs", 1025),
    ("prompt_alt_tokens_k", -1),
    ("prompt_alt_tokens_k", 1025),
    ("prompt_logprobs_last_n", 1),  # without prompt_logprobs
    ("target_prompt_logprobs", np.zeros(2, dtype=np.int64)),
    ("target_prompt_logprobs", np.zeros((3, 1), dtype=np.int64)),
    ("target_prompt_logprobs", np.zeros((1, 2, 1), dtype=np.int64)),
    ("target_prompt_logprobs", np.zeros((2, 1))),
    ("target_prompt_logprobs", np.full((2, 1), VOCABULARY)),
    ("target_prompt_logprobs", np.full((2, 1), -2)),
]


@pytest.fixture(scope="module")
def sampler(make_sampler: MakeSampler) -> Sampler:
    return make_sampler()


@pytest.mark.parametrize(("name", "value"), BAD_PARAMS)
def test_bad_sampling_params(name: str, value: Any, sampler: Sampler):
    request = replace(GOOD, params=replace(GOOD.params, **{name: value}))
    refused(sampler, request, f"sampling_params.{name}")


@pytest.mark.parametrize(("name", "value"), BAD_REQUESTS)
def test_bad_requests(name: str, value: Any, sampler: Sampler):
    refused(sampler, replace(GOOD, **{name: value}), name)


@pytest.mark.parametrize("last_n", [-1, 0, 3, 9, 1.5])
def test_last_n_lies_within_what_can_be_scored(last_n: Any, sampler: Sampler):
    refused(
        sampler,
        replace(GOOD, prompt_logprobs=True, prompt_logprobs_last_n=last_n),
        "prompt_logprobs_last_n",
    )


def test_adapters_that_may_change_or_do_not_fit(sampler: Sampler):
    refused(sampler, replace(GOOD, adapter=trained_like(decoder_of(FAMILY), 1)), "adapter")
    refused(sampler, replace(GOOD, adapter=adapter_of("qwen3", 1)), "adapter")


def refused(sampler: Sampler, request: SampleRequest, field: str) -> None:
    with pytest.raises(InputError) as caught:
        sampler.submit(request)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")
    assert sampler.idle


def test_the_sampler_works_on_after_refusals(make_sampler: MakeSampler):
    sampler = make_sampler()
    running = sampler.submit(make_request([1, 2, 3], 12))
    bad: list[SampleRequest] = [replace(GOOD, **{name: value}) for name, value in BAD_REQUESTS]
    bad += [replace(GOOD, params=replace(GOOD.params, **{name: value})) for name, value in BAD_PARAMS]
    for request in bad:
        with pytest.raises(InputError):
            sampler.submit(request)
        if not running.done:
            sampler.step()
    assert running.done
    assert_same(running.result.sequences[0], sample_one(make_sampler(), running.request))
    assert_same(sample_one(sampler, GOOD), sample_one(make_sampler(), GOOD))
    assert_empty(sampler)


def test_the_bounds_themselves_are_accepted(make_sampler: MakeSampler):
    sampler = make_sampler()
    prompt = random_prompt(0, CONTEXT - 1)
    for params in (
        SamplingParams(max_tokens=1, temperature=1e-4, top_k=1, top_p=1.0, seed=-1),
        SamplingParams(max_tokens=1, temperature=1e6, top_k=10**9, top_p=1e-12, stop=[0, VOCABULARY - 1]),
        SamplingParams(),
    ):
        assert len(sample_one(sampler, SampleRequest(prompt, params)).tokens) == 1
    (result,) = sampler.sample(
        [make_request([VOCABULARY - 1, 0], 1, num_samples=300, topk_sample_logprobs=1024)]
    )
    assert len(result.sequences) == 300


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_adapter_that_diverged_fails_its_own_requests_alone(temperature: float, make_sampler: MakeSampler):
    broken = adapter_of(FAMILY, 1).snapshot()
    broken.flat.fill_(float("nan"))
    sampler = make_sampler()
    fine = make_request(random_prompt(1, 9), 6)
    expected = sample_one(make_sampler(), fine)
    tickets = [
        sampler.submit(
            make_request(random_prompt(2, 7), 6, adapter=broken, num_samples=n, temperature=temperature)
        )
        for n in (1, 3)
    ]
    good = sampler.submit(fine)
    finish(sampler, good)
    assert_same(good.result.sequences[0], expected)
    for ticket in tickets:
        assert ticket.done
        with pytest.raises(NonFiniteError, match="diverged"):
            _ = ticket.result
    assert_empty(sampler)
