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
from tinker_engine.model.decoder import Decoder
from tinker_engine.model.lora import LoraBatch
from tinker_engine.sampling.types import PromptAltTokens
from tinker_engine.training.trainer import Trainer
from tinker_engine.training.types import Datum

PROMPT = random_prompt(0, 109)
KINDS = {  # of scores, and what asks for them
    "prompt_logprobs": "prompt_logprobs",
    "topk_prompt_logprobs": "topk_prompt_logprobs",
    "target_prompt_logprobs": "target_prompt_logprobs",
    "prompt_alt_tokens": "prompt_alt_tokens_k",
}
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

    assert (scored.shape, scored.dtype) == ((108, 3), np.float32)
    assert (np.isnan(scored) == (targets == -1)).all()
    asked = want.gather(1, torch.from_numpy(targets).clamp(min=0)).numpy()
    np.testing.assert_allclose(scored[targets >= 0], asked[targets >= 0], atol=CLOSE)
    assert_empty(sampler)


def test_each_kind_is_given_only_when_asked_for(make_sampler: MakeSampler):
    sampler = make_sampler()
    every: list[dict[str, Any]] = [
        {},
        {"prompt_alt_tokens_k": 2},
        {"prompt_logprobs": True},
        {"topk_prompt_logprobs": 2},
        {"target_prompt_logprobs": some_targets()},
    ]
    for asked in every:
        (result,) = sampler.sample([make_request(PROMPT, 1, **asked)])
        for name in KINDS:
            assert (getattr(result, name) is not None) == (KINDS[name] in asked)


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


# --- the last n alone ---------------------------------------------------------------------------


@pytest.fixture
def head_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each product with the head."""
    rows: list[int] = []
    original = Decoder.logits

    def counting(self: Decoder, hidden_TD: Tensor, lora: LoraBatch) -> Tensor:
        rows.append(len(hidden_TD))
        return original(self, hidden_TD, lora)

    monkeypatch.setattr(Decoder, "logits", counting)
    return rows


@pytest.mark.parametrize("prefill_tokens", [7, 512])
@pytest.mark.parametrize("last_n", [1, 9, 44])
def test_only_the_last_n_positions_are_scored(
    last_n: int, prefill_tokens: int, make_sampler: MakeSampler, head_rows: list[int]
):
    sampler = make_sampler(prefill_tokens=prefill_tokens)
    asked = {"prompt_logprobs": True, "topk_prompt_logprobs": 3}
    (whole,) = sampler.sample([make_request(PROMPT, 1, **asked)])
    head_rows.clear()
    (result,) = make_sampler(prefill_tokens=prefill_tokens).sample(
        [make_request(PROMPT, 1, prompt_logprobs_last_n=last_n, **asked)]
    )
    assert sum(head_rows) == last_n + 1  # and the one that gives the sampled token
    skipped = len(PROMPT) - last_n
    for found, all_of_them in (
        (result.prompt_logprobs, whole.prompt_logprobs),
        (result.topk_prompt_logprobs, whole.topk_prompt_logprobs),
    ):
        assert found is not None
        assert all_of_them is not None
        assert found[:skipped] == [None] * skipped
        assert found[skipped:] == all_of_them[skipped:]


def test_the_last_n_do_not_touch_the_other_kinds(make_sampler: MakeSampler):
    targets = some_targets()
    both = {"target_prompt_logprobs": targets, "prompt_alt_tokens_k": 2, "prompt_logprobs": True}
    (whole,) = make_sampler().sample([make_request(PROMPT, 1, **both)])
    (result,) = make_sampler().sample([make_request(PROMPT, 1, prompt_logprobs_last_n=5, **both)])
    np.testing.assert_array_equal(result.target_prompt_logprobs, whole.target_prompt_logprobs)
    assert result.prompt_alt_tokens is not None
    assert whole.prompt_alt_tokens is not None
    np.testing.assert_array_equal(result.prompt_alt_tokens.tokens, whole.prompt_alt_tokens.tokens)
    assert result.prompt_logprobs is not None
    assert whole.prompt_logprobs is not None
    assert result.prompt_logprobs == [None] * 104 + whole.prompt_logprobs[104:]


@pytest.mark.parametrize("kind", ["last_n", "targets"])
def test_what_comes_before_the_scores_may_be_in_the_cache(kind: str, make_sampler: MakeSampler):
    want = reference_logprobs(FAMILY)
    targets = np.full((len(PROMPT) - 1, 1), -1)
    targets[94:, 0] = PROMPT[95:]
    sampler = make_sampler()
    sampler.sample([make_request([*PROMPT[:104], 1], 1)])
    computed = sampler.prompt_tokens
    if kind == "last_n":
        request = make_request(PROMPT, 1, prompt_logprobs=True, prompt_logprobs_last_n=14)
    else:
        request = make_request(PROMPT, 1, target_prompt_logprobs=targets)
    (result,) = sampler.sample([request])
    assert result.prompt_cache_hit_tokens == 94
    assert sampler.prompt_tokens - computed == len(PROMPT) - 94
    found = result.prompt_logprobs
    if found is None:
        assert result.target_prompt_logprobs is not None
        found = [None, *result.target_prompt_logprobs[:, 0].tolist()]
    own = want.gather(1, torch.tensor(PROMPT[1:])[:, None])[:, 0]
    assert found[95:] == pytest.approx(own[94:].tolist(), abs=CLOSE)
    assert_empty(sampler)


# --- alternative tokens -------------------------------------------------------------------------


def alternatives(make_sampler: MakeSampler, k: int, **changes: Any) -> PromptAltTokens:
    settings = {"prefill_tokens": changes.pop("prefill_tokens", 512)}
    (result,) = make_sampler(**settings).sample([make_request(PROMPT, 3, prompt_alt_tokens_k=k, **changes)])
    drawn = result.prompt_alt_tokens
    assert drawn is not None
    assert drawn.tokens.shape == drawn.logprobs.shape == (len(PROMPT) - 1, k)
    assert (drawn.tokens.dtype, drawn.logprobs.dtype) == (np.int64, np.float32)
    return drawn


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_alternatives_follow_the_models_distribution(temperature: float, make_sampler: MakeSampler):
    want = reference_logprobs(FAMILY)
    drawn = alternatives(make_sampler, 1024, temperature=temperature, top_k=1)  # which cuts samples alone
    own = want.gather(1, torch.from_numpy(drawn.tokens)).numpy()
    np.testing.assert_allclose(drawn.logprobs, own, atol=CLOSE)  # the model's, at any temperature
    shares = torch.softmax(want / temperature, -1).numpy()
    for row, share in zip(drawn.tokens, shares, strict=True):
        found = np.bincount(row, minlength=VOCABULARY) / 1024
        # Half the summed difference; its mean is about √(2/(π·1024)) · Σ√(p(1−p)) / 2, at most 0.13 here.
        # The distribution of another temperature is 0.26 away.
        assert np.abs(found - share).sum() / 2 < 0.2


def test_alternatives_repeat_with_the_seed_and_depend_on_nothing_else(make_sampler: MakeSampler):
    one, again = alternatives(make_sampler, 4), alternatives(make_sampler, 4, prefill_tokens=7)
    np.testing.assert_array_equal(one.tokens, again.tokens)
    np.testing.assert_array_equal(alternatives(make_sampler, 2).tokens, one.tokens[:, :2])
    np.testing.assert_array_equal(alternatives(make_sampler, 4, num_samples=3).tokens, one.tokens)
    assert (alternatives(make_sampler, 4, seed=2).tokens != one.tokens).any()
    assert len(np.unique(one.tokens, axis=1).T) == 4  # draws differ from each other
    (plain,) = make_sampler().sample([make_request(PROMPT, 3)])
    (beside,) = make_sampler().sample([make_request(PROMPT, 3, prompt_alt_tokens_k=4)])
    assert plain.sequences[0].tokens == beside.sequences[0].tokens


def test_greedy_alternatives_are_the_likeliest_token(make_sampler: MakeSampler):
    drawn = alternatives(make_sampler, 2, temperature=0)
    values, tokens = reference_logprobs(FAMILY).max(-1)
    np.testing.assert_array_equal(drawn.tokens, tokens[:, None].expand(-1, 2).numpy())
    np.testing.assert_allclose(drawn.logprobs[:, 0], values.numpy(), atol=CLOSE)


def test_a_prompt_of_one_token_has_no_alternatives(make_sampler: MakeSampler):
    (result,) = make_sampler().sample([make_request([3], 1, prompt_alt_tokens_k=2)])
    assert result.prompt_alt_tokens is not None
    assert result.prompt_alt_tokens.tokens.shape == (0, 2)


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
