"""Which distribution a token is drawn from, and which of its tokens a random number picks."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tinker_engine.sampling.choice import Chosen, Draw, choose, draw_many, uniform, uniforms

SIZES = (1, 2, 63, 64, 65, 131, 1024, 1500)  # around the block of the search and the head of the top-p cut
CUTS = ((-1, 1.0), (1, 1.0), (5, 1.0), (-1, 0.6), (-1, 0.999), (20, 0.8), (3, 0.05), (100_000, 1.0))
LARGEST = 1 - 2.0**-53  # of the numbers below 1


def some_logits(size: int, spread: float = 2.0, seed: int = 0) -> Tensor:
    return spread * torch.randn(size, generator=torch.Generator().manual_seed(seed))


def expected(logits_V: Tensor, temperature: float, top_k: int, top_p: float) -> np.ndarray:
    """The definition, token by token in float64: temperature, top-k, renormalise, top-p, renormalise."""
    scaled = logits_V.double().numpy() / temperature
    probs = np.exp(scaled - scaled.max())
    probs /= probs.sum()
    kept = sorted(range(len(probs)), key=lambda token: (-probs[token], token))
    if top_k > 0:
        kept = kept[:top_k]
    mass, reached, nucleus = probs[kept].sum(), 0.0, []
    for token in kept:
        if top_p < 1 and reached >= top_p:
            break
        nucleus.append(token)
        reached += probs[token] / mass
    result = np.zeros_like(probs)
    result[nucleus] = probs[nucleus] / probs[nucleus].sum()
    return result


def pick(logits_V: Tensor, draw: Draw) -> Chosen:
    return choose(logits_V.clone()[None], [draw])[0]


def distribution(logits_V: Tensor, temperature: float, top_k: int = -1, top_p: float = 1.0) -> np.ndarray:
    """All of it, as `choose` reports it."""
    size = len(logits_V)
    chosen = pick(logits_V, Draw(0.5, temperature, top_k, top_p, alternatives=size))
    probs = np.zeros(size)
    for token, logprob in chosen.alternatives:
        probs[token] = math.exp(logprob)
    return probs


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_the_distribution_is_the_defined_one(size, temperature):
    logits = some_logits(size)
    for top_k, top_p in CUTS:
        found = distribution(logits, temperature, top_k, top_p)
        want = expected(logits, temperature, top_k, top_p)
        assert ((found > 0) == (want > 0)).all(), (top_k, top_p)
        np.testing.assert_allclose(found, want, rtol=1e-5)
        assert found.sum() == pytest.approx(1, abs=1e-5)


def test_top_p_looks_beyond_its_first_candidates():
    logits = some_logits(5000, spread=0.1)  # so flat that 0.9 takes thousands of tokens
    want = expected(logits, 1.0, -1, 0.9)
    assert (want > 0).sum() > 4000
    np.testing.assert_allclose(distribution(logits, 1.0, -1, 0.9), want, rtol=1e-5)
    peaked = torch.cat((torch.tensor([20.0]), logits))
    assert (distribution(peaked, 1.0, -1, 0.9) > 0).sum() == 1


def test_cuts_by_hand():
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    np.testing.assert_allclose(distribution(logits, 1.0, 2), [4 / 7, 3 / 7, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(distribution(logits, 1.0, -1, 0.65), [4 / 7, 3 / 7, 0, 0], rtol=1e-6)
    # Top-k first: of 4/9, 3/9, 2/9 two reach 0.75. Top-p first would have kept three.
    np.testing.assert_allclose(distribution(logits, 1.0, 3, 0.75), [4 / 7, 3 / 7, 0, 0], rtol=1e-6)
    # Temperature first: of 16/30, 9/30, … two reach 0.8. At temperature 1 it takes three.
    np.testing.assert_allclose(distribution(logits, 0.5, -1, 0.8), [16 / 25, 9 / 25, 0, 0], rtol=1e-6)
    # The fewest that reach it: a token that reaches it exactly is the last.
    assert sorted(distribution(torch.zeros(4), 1.0, -1, 0.5)) == pytest.approx([0, 0, 0.5, 0.5])
    assert (distribution(logits, 1.0, -1, 1e-9) > 0).tolist() == [True, False, False, False]


@pytest.mark.parametrize("temperature", [0.25, 0.7, 1.9])
def test_differences_between_tokens_scale_with_one_over_the_temperature(temperature):
    logits = some_logits(131, spread=1.0)
    at_one, cold = (np.log(distribution(logits, t)) for t in (1.0, temperature))
    differences = at_one[:, None] - at_one[None, :]
    np.testing.assert_allclose(cold[:, None] - cold[None, :], differences / temperature, atol=1e-4)


@pytest.mark.parametrize(("size", "cut"), [(64, CUTS[0]), (65, CUTS[0]), *((131, cut) for cut in CUTS[:-1])])
def test_each_token_gets_its_share_of_the_random_numbers(size, cut):
    logits, count = some_logits(size), 2048
    draws = [Draw((i + 0.5) / count, 1.3, *cut) for i in range(count)]
    chosen = choose(logits.repeat(count, 1), draws)
    want = expected(logits, 1.3, *cut)
    times = Counter(one.token for one in chosen)
    shares = np.array([times[token] / count for token in range(size)])
    np.testing.assert_allclose(shares, want, atol=1e-3)
    np.testing.assert_allclose(
        [one.logprob for one in chosen], [np.log(want[one.token]) for one in chosen], atol=1e-5
    )
    assert [one.token for one in chosen] == sorted(one.token for one in chosen)  # in vocabulary order


def test_many_samples_of_a_seed_follow_the_distribution():
    logits, count = some_logits(131, spread=1.0), 8000
    want = expected(logits, 1.0, 40, 0.95)
    chosen = choose(logits.repeat(count, 1), [Draw(uniform(7, i, 3), 1.0, 40, 0.95) for i in range(count)])
    times = Counter(one.token for one in chosen)
    possible = np.flatnonzero(want)
    assert set(times) <= set(possible.tolist())
    counts = np.array([times[token] for token in possible.tolist()])
    square = ((counts - count * want[possible]) ** 2 / (count * want[possible])).sum()
    freedom = len(possible) - 1
    assert abs(square - freedom) < 4 * math.sqrt(2 * freedom)


@given(
    seed=st.integers(0, 10_000),
    size=st.integers(1, 300),
    spread=st.sampled_from([0.0, 0.5, 5.0, 60.0, 1e4]),
    temperature=st.sampled_from([1e-4, 0.5, 1.0, 30.0, 1e12]),
    cut=st.sampled_from(CUTS),
    number=st.one_of(st.sampled_from([0.0, 5e-324, 0.5, LARGEST]), st.floats(0, 1, exclude_max=True)),
)
def test_whatever_is_drawn_was_possible(seed, size, spread, temperature, cut, number):
    logits = some_logits(size, spread, seed)
    chosen = pick(logits, Draw(number, temperature, *cut, alternatives=size))
    reported = dict(chosen.alternatives)
    assert 0 <= chosen.token < size
    assert chosen.logprob == reported[chosen.token] > -math.inf
    assert sum(map(math.exp, reported.values())) == pytest.approx(1, abs=1e-4)


def test_the_ends_of_the_unit_interval_pick_the_first_and_last_possible_token():
    logits = torch.full((200,), -torch.inf)
    logits[[70, 71, 130]] = torch.tensor([0.0, 1.0, 2.0])
    assert [pick(logits, Draw(u, 1.0)).token for u in (0.0, LARGEST)] == [70, 130]
    assert [pick(logits, Draw(u, 1.0, top_k=2)).token for u in (0.0, LARGEST)] == [71, 130]


def test_greedy_is_the_argmax_and_reports_the_models_own_logprob():
    logits = some_logits(131)
    best = int(logits.argmax())
    for u in (0.0, 0.4, LARGEST):
        for draw in (Draw(u, 0), Draw(u, 0, top_k=3), Draw(u, 0, top_p=0.2), Draw(u, 0, 1, 0.5)):
            chosen = pick(logits, draw)
            assert chosen.token == best
            assert chosen.logprob == pytest.approx(float(logits.log_softmax(-1)[best]), abs=1e-6)
    chosen = pick(logits, Draw(0.5, 0, top_k=1, alternatives=131))
    assert len(chosen.alternatives) == 131  # uncut


def test_greedy_takes_the_lowest_of_equals_and_only_of_equals():
    ties = torch.zeros(131)
    ties[[17, 64, 130]] = 3.0
    assert pick(ties, Draw(0.9, 0)).token == 17
    assert choose(ties.repeat(3, 1), [Draw(0.9, 0)] * 3)[2].token == 17
    close = torch.full((131,), 0.1)
    close[99] = torch.nextafter(close[99], torch.tensor(1.0))  # as a probability it is the same number
    assert pick(close, Draw(0.0, 0)).token == 99


def test_a_row_depends_on_nothing_but_itself():
    logits = torch.stack([some_logits(131, seed=seed) for seed in range(9)])
    draws = [
        Draw(uniform(5, i, 0), temperature, top_k, top_p, alternatives=i)
        for i, (temperature, (top_k, top_p)) in enumerate(
            zip((0, 0.5, 1, 1, 2, 0, 1, 9, 1), (*CUTS, CUTS[0]), strict=True)
        )
    ]
    together = choose(logits.clone(), draws)
    for i, draw in enumerate(draws):
        alone = pick(logits[i], draw)
        assert together[i].token == alone.token
        assert together[i].logprob == pytest.approx(alone.logprob, abs=1e-6)
        assert [token for token, _ in together[i].alternatives] == [token for token, _ in alone.alternatives]


def test_alternatives_are_the_most_likely_first():
    logits = some_logits(131)
    chosen = pick(logits, Draw(0.5, 0.7, top_k=10, alternatives=4))
    want = np.log(expected(logits, 0.7, 10, 1.0)[np.argsort(-logits.numpy())[:4]])
    assert [token for token, _ in chosen.alternatives] == np.argsort(-logits.numpy())[:4].tolist()
    np.testing.assert_allclose([logprob for _, logprob in chosen.alternatives], want, atol=1e-5)
    assert len(pick(logits, Draw(0.5, 0.7, top_k=10, alternatives=50)).alternatives) == 10
    assert len(pick(logits, Draw(0.5, 1.0, alternatives=1000)).alternatives) == 131
    assert pick(logits, Draw(0.5, 1.0)).alternatives == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_number_formats_are_widened_before_anything_is_computed(dtype):
    logits = some_logits(131).to(dtype)
    np.testing.assert_allclose(distribution(logits, 0.7), expected(logits, 0.7, -1, 1.0), rtol=1e-5)
    assert pick(logits, Draw(0.5, 0)).token == int(logits.argmax())


# --- random numbers ------------------------------------------------------------------------------


def test_uniform_is_a_function_of_its_arguments():
    assert uniform(3, 1, 4) == uniform(3, 1, 4)
    # Kept: recorded samples must be repeatable with a later release.
    recorded = [0.13870941014555427, 0.814259011529328, 0.9844383619111032]
    assert [uniform(0, 0, 0), uniform(1, 2, 3), uniform(-1, 0, 0)] == recorded


def test_uniform_differs_by_each_argument():
    numbers = {
        uniform(seed, sample, position)
        for seed in range(20)
        for sample in range(20)
        for position in range(20)
    }
    assert len(numbers) == 8000


@given(seed=st.integers(-(2**80), 2**80), sample=st.integers(0, 4096), position=st.integers(0, 10**6))
def test_uniform_is_below_one_for_any_seed(seed, sample, position):
    assert 0 <= uniform(seed, sample, position) < 1


@pytest.mark.parametrize("axis", ["seed", "sample", "position"])
def test_uniform_is_uniform_along_every_argument(axis):
    count, bins = 20_000, 50
    numbers = np.array(
        [uniform(**({"seed": 5, "sample": 6, "position": 7} | {axis: i})) for i in range(count)]
    )
    times, _ = np.histogram(numbers, bins=bins, range=(0, 1))
    assert abs(((times - count / bins) ** 2 / (count / bins)).sum() - (bins - 1)) < 4 * math.sqrt(
        2 * (bins - 1)
    )
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 4 / math.sqrt(count)


@given(seed=st.integers(-(2**80), 2**80), sample=st.integers(-1024, 4096), first=st.integers(0, 10**6))
def test_uniforms_are_the_same_numbers_at_once(seed, sample, first):
    positions = np.arange(first, first + 5)
    expected = [uniform(seed, sample, position) for position in positions.tolist()]
    assert uniforms(seed, sample, positions).tolist() == expected


@given(
    seed=st.integers(0, 1000),
    size=st.sampled_from(SIZES),
    temperature=st.sampled_from([0.0, 0.01, 0.7, 1.0, 5.0]),
    number=st.floats(0, LARGEST),
)
def test_many_draws_are_possible_ones(seed, size, temperature, number):
    logits = some_logits(size, 30.0, seed)
    logits[-1] = -torch.inf if size > 1 else 0.0
    numbers = torch.tensor([[0.0, number, LARGEST]], dtype=torch.float64)
    tokens = draw_many(logits[None], temperature, numbers)
    chances = torch.softmax(logits / (temperature or 1e-4), -1)
    assert (chances[tokens] > 0).all()
    assert tokens[0].tolist() == sorted(tokens[0].tolist())  # along the cumulative distribution


def test_many_draws_take_their_shares():
    probs = torch.tensor([[0.5, 0.0, 0.25, 0.25], [0.0, 1.0, 0.0, 0.0]])
    numbers = torch.tensor([[0.0, 0.49, 0.5, 0.74, 0.76]], dtype=torch.float64).expand(2, -1)
    assert draw_many(probs.log(), 1.0, numbers).tolist() == [[0, 0, 2, 2, 3], [1, 1, 1, 1, 1]]
