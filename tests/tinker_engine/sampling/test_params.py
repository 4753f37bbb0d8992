"""Every sampling parameter, from request to result."""

import numpy as np
import pytest
import torch

from tests.tinker_engine.families import FAMILIES
from tests.tinker_engine.sampling.conftest import MakeSampler
from tests.tinker_engine.sampling.support import (
    CONTEXT,
    VOCABULARY,
    assert_empty,
    make_request,
    random_prompt,
    reference_of,
    sample_one,
)
from tinker_engine.sampling.types import SampleRequest, SamplingParams

PROMPT = random_prompt(0, 12)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_is_the_argmax_of_the_model(family, make_sampler: MakeSampler):
    sampler = make_sampler(family)
    sequence = sample_one(sampler, make_request(PROMPT, 10, temperature=0))
    context = list(PROMPT)
    for token, logprob in zip(sequence.tokens, sequence.logprobs, strict=True):
        with torch.no_grad():
            logprobs = torch.log_softmax(reference_of(family)(torch.tensor([context])).logits[0, -1], -1)
        assert token == int(logprobs.argmax())
        assert logprob == pytest.approx(float(logprobs[token]), abs=1e-4)  # at temperature 1
        context.append(token)
    assert_empty(sampler)


@pytest.mark.parametrize("max_tokens", [1, 2, 17])
def test_max_tokens(max_tokens, make_sampler: MakeSampler):
    sequence = sample_one(make_sampler(), make_request(PROMPT, max_tokens))
    assert len(sequence.tokens) == len(sequence.logprobs) == max_tokens
    assert sequence.stop_reason == "length"


@pytest.mark.parametrize("max_tokens", [None, 12, 13, 10_000])
def test_the_context_ends_every_sample(max_tokens, make_sampler: MakeSampler):
    params = SamplingParams(max_tokens=max_tokens, seed=1, stop=[])
    sequence = sample_one(make_sampler(), SampleRequest(random_prompt(1, CONTEXT - 12), params))
    assert (len(sequence.tokens), sequence.stop_reason) == (12, "length")
    assert np.isfinite(sequence.logprobs).all()


def test_a_seed_repeats_and_another_does_not(make_sampler: MakeSampler):
    sampler = make_sampler()
    first, again, other, negative, huge = (
        sample_one(sampler, make_request(PROMPT, seed=seed)).tokens for seed in (5, 5, 6, -5, 2**70 + 5)
    )
    assert first == again
    assert len({tuple(tokens) for tokens in (first, other, negative)}) == 3
    assert len(huge) == 24
    assert sample_one(sampler, make_request(PROMPT, seed=np.int64(5))).tokens == first  # type: ignore[arg-type]


def test_without_a_seed_every_call_differs(make_sampler: MakeSampler):
    sampler = make_sampler()
    assert len({tuple(sample_one(sampler, make_request(PROMPT, seed=None)).tokens) for _ in range(4)}) == 4


def test_samples_of_a_request_differ_from_each_other(make_sampler: MakeSampler):
    (result,) = make_sampler().sample([make_request(PROMPT, num_samples=8)])
    assert len({tuple(sequence.tokens) for sequence in result.sequences}) == 8
    (greedy,) = make_sampler().sample([make_request(PROMPT, num_samples=8, temperature=0)])
    assert len({tuple(sequence.tokens) for sequence in greedy.sequences}) == 1


# --- what ends a sample ---------------------------------------------------------------------------


def test_none_stops_at_each_end_of_sequence_token_and_an_empty_list_at_none(make_sampler: MakeSampler):
    free = sample_one(make_sampler(), make_request(PROMPT)).tokens
    for end in (free[7], free[15]):
        cut = free[: free.index(end) + 1]
        sampler = make_sampler(eos=(999_999, end))
        stopped = sample_one(sampler, make_request(PROMPT, stop=None))
        assert (stopped.tokens, stopped.stop_reason) == (cut, "stop")
        endless = sample_one(sampler, make_request(PROMPT, stop=[]))
        assert (endless.tokens, endless.stop_reason) == (free, "length")


def test_a_listed_token_replaces_the_end_of_sequence_and_is_returned(make_sampler: MakeSampler):
    free = sample_one(make_sampler(), make_request(PROMPT)).tokens
    early, late = free[3], next(token for token in free[10:] if token not in free[:10])
    sampler = make_sampler(eos=(early,))
    stopped = sample_one(sampler, make_request(PROMPT, stop=[late]))
    assert (stopped.tokens, stopped.stop_reason) == (free[: free.index(late) + 1], "stop")
    several = sample_one(sampler, make_request(PROMPT, stop=(late, free[5], VOCABULARY - 1)))
    assert several.tokens == free[: min(free.index(token) for token in (late, free[5])) + 1]


def test_a_stop_on_the_last_allowed_token_is_a_stop(make_sampler: MakeSampler):
    free = sample_one(make_sampler(), make_request(PROMPT, 6)).tokens
    assert free[5] not in free[:5]
    assert sample_one(make_sampler(), make_request(PROMPT, 6, stop=[free[5]])).stop_reason == "stop"


def test_a_sample_may_end_with_its_first_token(make_sampler: MakeSampler):
    sampler = make_sampler()
    first = sample_one(sampler, make_request(PROMPT, 1)).tokens
    stopped = sample_one(sampler, make_request(PROMPT, stop=first))
    assert (stopped.tokens, stopped.stop_reason) == (first, "stop")
    (group,) = sampler.sample([make_request(PROMPT, num_samples=6, stop=first)])
    assert group.sequences[0] == stopped
    assert any(len(sequence.tokens) > 1 for sequence in group.sequences)
    assert_empty(sampler)


# --- which distribution ---------------------------------------------------------------------------


def first_distribution(make_sampler: MakeSampler, **params) -> dict[int, float]:
    sequence = sample_one(make_sampler(), make_request(PROMPT, 1, topk_sample_logprobs=VOCABULARY, **params))
    assert sequence.topk_logprobs is not None
    reported = dict(sequence.topk_logprobs[0])
    assert sequence.logprobs[0] == pytest.approx(reported[sequence.tokens[0]], abs=1e-6)
    assert np.exp(list(reported.values())).sum() == pytest.approx(1, abs=1e-5)
    return reported


def model_logprobs() -> torch.Tensor:
    with torch.no_grad():
        return torch.log_softmax(
            reference_of("llama3-rope")(torch.tensor([PROMPT])).logits[0, -1].double(), -1
        )


def test_temperature_scales_differences(make_sampler: MakeSampler):
    at_one = first_distribution(make_sampler)
    want = model_logprobs()
    assert [at_one[i] for i in range(VOCABULARY)] == pytest.approx(want.tolist(), abs=1e-4)
    for temperature in (0.5, 1.7):
        warm = first_distribution(make_sampler, temperature=temperature)
        for token in range(1, VOCABULARY):
            assert (warm[token] - warm[0]) * temperature == pytest.approx(at_one[token] - at_one[0], abs=1e-4)
    assert first_distribution(make_sampler, temperature=0) == pytest.approx(at_one)


def test_top_k_and_top_p_cut_and_renormalise(make_sampler: MakeSampler):
    want = model_logprobs().exp()
    order = want.argsort(descending=True)

    few = first_distribution(make_sampler, top_k=7)
    assert list(few) == order[:7].tolist()
    shares = want[order[:7]] / want[order[:7]].sum()
    assert list(few.values()) == pytest.approx(shares.log().tolist(), abs=1e-4)

    nucleus = first_distribution(make_sampler, top_p=0.5)
    size = int((want[order].cumsum(0) < 0.5).sum()) + 1
    assert list(nucleus) == order[:size].tolist()

    both = first_distribution(make_sampler, top_k=7, top_p=0.5)
    size = int((shares.cumsum(0) < 0.5).sum()) + 1
    assert list(both) == order[:size].tolist()
    assert list(both.values()) == pytest.approx(
        (shares[:size] / shares[:size].sum()).log().tolist(), abs=1e-4
    )


def test_the_most_restrictive_cuts_are_greedy_decoding_with_certainty(make_sampler: MakeSampler):
    greedy = sample_one(make_sampler(), make_request(PROMPT, temperature=0)).tokens
    for top_k, top_p in ((1, 1.0), (-1, 1e-6)):
        sequence = sample_one(make_sampler(), make_request(PROMPT, top_k=top_k, top_p=top_p))
        assert (sequence.tokens, sequence.logprobs) == (greedy, [0.0] * len(greedy))


def test_alternatives_come_with_every_token(make_sampler: MakeSampler):
    (result,) = make_sampler().sample([make_request(PROMPT, 9, num_samples=3, topk_sample_logprobs=4)])
    for sequence in result.sequences:
        assert sequence.topk_logprobs is not None
        assert [len(alternatives) for alternatives in sequence.topk_logprobs] == [4] * 9
        for token, logprob, alternatives in zip(
            sequence.tokens, sequence.logprobs, sequence.topk_logprobs, strict=True
        ):
            logprobs = [value for _, value in alternatives]
            assert logprobs == sorted(logprobs, reverse=True)
            assert dict(alternatives).get(token, logprob) == pytest.approx(logprob, abs=1e-6)
            assert logprob <= logprobs[0] + 1e-6
    assert sample_one(make_sampler(), make_request(PROMPT)).topk_logprobs is None
