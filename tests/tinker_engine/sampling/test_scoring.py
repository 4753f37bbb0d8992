"""Logprobs of a prompt: those of the reference model, at temperature 1, whatever the sampling parameters."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.tinker_engine.families import FAMILIES
from tests.tinker_engine.sampling.conftest import MakeSampler
from tests.tinker_engine.sampling.support import (
    FAMILY,
    VOCABULARY,
    adapter_of,
    assert_empty,
    decoder_of,
    make_request,
    random_prompt,
    reference_of,
)
from tinker_engine.training.trainer import Trainer
from tinker_engine.training.types import Datum

PROMPT = random_prompt(0, 45)
CLOSE = 1e-4


def reference_logprobs(family: str) -> Tensor:
    """Row i is of prompt position i + 1."""
    with torch.no_grad():
        return torch.log_softmax(reference_of(family)(torch.tensor([PROMPT])).logits[0, :-1], -1)


def some_targets() -> np.ndarray:
    targets = np.random.default_rng(0).integers(0, VOCABULARY, (len(PROMPT) - 1, 3))
    targets[::4, 1] = -1
    targets[7] = -1
    return targets


@pytest.mark.parametrize("prefill_tokens", [7, 512])
@pytest.mark.parametrize("family", FAMILIES)
def test_prompt_scores_are_the_reference_models(family: str, prefill_tokens: int, make_sampler: MakeSampler):
    want, targets = reference_logprobs(family), some_targets()
    sampler = make_sampler(family, prefill_tokens=prefill_tokens)
    (result,) = sampler.sample(
        [
            make_request(
                PROMPT,
                2,
                temperature=0.3,
                top_k=2,
                num_samples=2,
                prompt_logprobs=True,
                topk_prompt_logprobs=5,
                target_prompt_logprobs=targets,
            )
        ]
    )
    found, topk, scored = result.prompt_logprobs, result.topk_prompt_logprobs, result.target_prompt_logprobs
    assert found is not None
    assert topk is not None
    assert scored is not None
    own = want.gather(1, torch.tensor(PROMPT[1:])[:, None])[:, 0]
    assert found[0] is None
    assert found[1:] == pytest.approx(own.tolist(), abs=CLOSE)

    assert topk[0] is None
    values, tokens = want.topk(5)
    for position, alternatives in enumerate(topk[1:]):
        assert alternatives is not None
        assert [token for token, _ in alternatives] == tokens[position].tolist()
        assert [value for _, value in alternatives] == pytest.approx(values[position].tolist(), abs=CLOSE)

    assert (scored.shape, scored.dtype) == ((44, 3), np.float32)
    assert (np.isnan(scored) == (targets == -1)).all()
    asked = want.gather(1, torch.from_numpy(targets).clamp(min=0)).numpy()
    np.testing.assert_allclose(scored[targets >= 0], asked[targets >= 0], atol=CLOSE)
    assert_empty(sampler)


def test_each_kind_is_given_only_when_asked_for(make_sampler: MakeSampler):
    sampler = make_sampler()
    every: list[dict[str, Any]] = [
        {},
        {"prompt_logprobs": True},
        {"topk_prompt_logprobs": 2},
        {"target_prompt_logprobs": some_targets()},
    ]
    for asked in every:
        (result,) = sampler.sample([make_request(PROMPT, 1, **asked)])
        for name in ("prompt_logprobs", "topk_prompt_logprobs", "target_prompt_logprobs"):
            assert (getattr(result, name) is not None) == (name in asked)


def test_scores_are_of_the_requests_adapter(make_sampler: MakeSampler):
    adapter = adapter_of(FAMILY, 1)
    sampler = make_sampler(prefill_tokens=10)
    scored, base = sampler.sample(
        [make_request(PROMPT, 1, adapter=a, prompt_logprobs=True) for a in (adapter, None)]
    )
    weights = [1.0] * (len(PROMPT) - 1)
    datum = Datum(PROMPT[:-1], {"target_tokens": PROMPT[1:], "weights": weights})
    (want,) = Trainer(decoder_of(FAMILY)).forward(adapter, [datum], "cross_entropy").logprobs
    assert scored.prompt_logprobs is not None
    assert base.prompt_logprobs is not None
    assert scored.prompt_logprobs[1:] == pytest.approx(want.tolist(), abs=CLOSE)
    assert scored.prompt_logprobs[1:] != pytest.approx(base.prompt_logprobs[1:], abs=0.1)


def test_a_prompt_in_the_cache_is_scored_all_the_same(make_sampler: MakeSampler):
    sampler = make_sampler()
    sampler.sample([make_request(PROMPT, 1)])
    (result,) = sampler.sample([make_request(PROMPT, 1, prompt_logprobs=True)])
    own = reference_logprobs(FAMILY).gather(1, torch.tensor(PROMPT[1:])[:, None])[:, 0]
    assert result.prompt_logprobs is not None
    assert result.prompt_logprobs[1:] == pytest.approx(own.tolist(), abs=CLOSE)
    assert result.prompt_cache_hit_tokens == 0  # every state had to be computed


def test_scores_of_a_request_whose_samples_start_one_after_the_other(make_sampler: MakeSampler):
    sampler = make_sampler(most_rows=1, prefill_tokens=11)
    (result,) = sampler.sample([make_request(PROMPT, 2, num_samples=3, prompt_logprobs=True)])
    own = reference_logprobs(FAMILY).gather(1, torch.tensor(PROMPT[1:])[:, None])[:, 0]
    assert result.prompt_logprobs is not None
    assert result.prompt_logprobs[1:] == pytest.approx(own.tolist(), abs=CLOSE)


def test_small_shapes(make_sampler: MakeSampler):
    sampler = make_sampler()
    nothing = np.zeros((0, 4), dtype=np.int32)
    (single,) = sampler.sample(
        [make_request([3], 1, prompt_logprobs=True, topk_prompt_logprobs=2, target_prompt_logprobs=nothing)]
    )
    assert (single.prompt_logprobs, single.topk_prompt_logprobs) == ([None], [None])
    assert single.target_prompt_logprobs is not None
    assert single.target_prompt_logprobs.shape == (0, 4)
    (narrow,) = sampler.sample(
        [make_request([3, 4], 1, target_prompt_logprobs=np.zeros((1, 0), dtype=np.int64))]
    )
    assert narrow.target_prompt_logprobs is not None
    assert narrow.target_prompt_logprobs.shape == (1, 0)
    (all_of_them,) = sampler.sample([make_request([3, 4], 1, topk_prompt_logprobs=1024)])
    assert all_of_them.topk_prompt_logprobs is not None
    assert len(all_of_them.topk_prompt_logprobs[1] or []) == VOCABULARY
