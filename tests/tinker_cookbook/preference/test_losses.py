"""Every loss and its gradient against formulas in numpy, with derivatives worked out by hand."""

import math

import numpy as np
import pytest
import torch

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.preference import losses
from tinker_cookbook.preference.losses import LOSSES, get_loss, loss_options

PAIRED = [name for name, loss in LOSSES.items() if loss.is_paired]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def by_hand(name: str, c, r, *, beta, gamma=0.0, label_smoothing=0.0):
    """Loss, its derivative by the chosen score, and by the rejected one."""
    if name == "ipo":
        h = c - r - 1 / (2 * beta)
        return h * h, 2 * h, -2 * h
    if name == "orpo":
        odds_c, odds_r = np.exp(c) / (1 - np.exp(c)), np.exp(r) / (1 - np.exp(r))
        share = odds_r / (odds_c + odds_r)  # 1 - sigmoid of the log odds ratio
        slope_c, slope_r = 1 / (1 - np.exp(c)), 1 / (1 - np.exp(r))  # of the log odds
        loss = -c + beta * np.log(1 + odds_r / odds_c)
        return loss, -1 - beta * share * slope_c, beta * share * slope_r
    x = beta * (c - r) - gamma
    loss = (1 - label_smoothing) * np.log(1 + np.exp(-x)) + label_smoothing * np.log(1 + np.exp(x))
    slope = beta * (sigmoid(x) - (1 - label_smoothing))
    return loss, slope, -slope


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dpo", {"beta": 0.1}),
        ("dpo", {"beta": 0.7, "label_smoothing": 0.2}),
        ("ipo", {"beta": 0.3}),
        ("simpo", {"beta": 2.5, "gamma": 1.4}),
        ("simpo", {"beta": 2.0, "gamma": 0.5, "label_smoothing": 0.1}),
        ("orpo", {"beta": 0.25}),
    ],
)
def test_paired_losses_and_gradients_are_those_worked_out_by_hand(name, options):
    rng = np.random.default_rng(3)
    logprobs, references = -rng.exponential(20, (2, 50)), -rng.exponential(20, (2, 50))
    lengths = rng.integers(1, 30, (2, 50)).astype(float)
    sums = torch.tensor(logprobs, requires_grad=True)
    scores = LOSSES[name].scores(sums, torch.tensor(references), torch.tensor(lengths))
    loss = LOSSES[name].function(scores[0], scores[1], **options)
    loss.mean().backward()

    plain = logprobs - references if LOSSES[name].needs_reference else logprobs
    per = lengths if LOSSES[name].per_token else np.ones_like(lengths)
    expected, *slopes = by_hand(name, *(plain / per), **options)
    assert loss.shape == (50,)
    np.testing.assert_allclose(loss.detach().numpy(), expected, rtol=1e-9, atol=1e-12)
    assert sums.grad is not None
    np.testing.assert_allclose(sums.grad.numpy(), np.stack(slopes) / per / 50, rtol=1e-9, atol=1e-12)


def test_kto_and_its_gradient_are_those_worked_out_by_hand():
    rng = np.random.default_rng(4)
    s, wanted, mismatched = rng.normal(0, 9, 40), rng.random(40) < 0.4, rng.normal(2, 5, 40)
    beta, up, down = 0.3, 1.5, 0.7
    scores = torch.tensor(s, requires_grad=True)
    others = torch.tensor(mismatched, requires_grad=True)
    z = losses.kl_baseline(others)
    loss = losses.kto(
        scores, torch.tensor(wanted), z, beta=beta, desirable_weight=up, undesirable_weight=down
    )
    loss.mean().backward()

    p = sigmoid(beta * (s - max(mismatched.mean(), 0)))
    np.testing.assert_allclose(
        loss.detach().numpy(), np.where(wanted, up * (1 - p), down * p), rtol=1e-9, atol=1e-12
    )
    slopes = np.where(wanted, -up, down) * beta * p * (1 - p) / 40
    assert scores.grad is not None
    np.testing.assert_allclose(scores.grad.numpy(), slopes, rtol=1e-9, atol=1e-12)
    assert others.grad is None


def test_a_divergence_is_not_negative():
    assert losses.kl_baseline(torch.tensor([-3.0, 1.0])) == 0.0


@pytest.mark.parametrize("name", PAIRED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_scores_give_finite_losses_and_gradients(name, dtype):
    extremes = [-1e4, -60.0, -1e-3, -1e-9, -0.0]
    pairs = [(c, r) for c in extremes for r in extremes]
    scores = torch.tensor(pairs, dtype=dtype, requires_grad=True)
    options = loss_options(name, 0.5, {})
    LOSSES[name].function(scores[:, 0], scores[:, 1], **options).sum().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    chosen, rejected = scores.grad.sum(0)
    assert chosen < 0 < rejected


def test_extreme_scores_of_kto():
    scores = torch.tensor([1e5, -1e5, 0.0] * 2, requires_grad=True)
    wanted = torch.tensor([True] * 3 + [False] * 3)
    loss = losses.kto(scores, wanted, torch.tensor(0.0), beta=1.0)
    loss.sum().backward()
    assert loss.tolist() == [0.0, 1.0, 0.5, 1.0, 0.0, 0.5]
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


def test_smoothed_dpo_is_least_where_the_labels_are_right_so_often():
    """Conservative DPO: at the best margin, the policy says 1 - label_smoothing."""
    margins = torch.linspace(-50, 50, 20001, dtype=torch.float64)
    smoothed = losses.dpo(margins, torch.zeros_like(margins), beta=0.2, label_smoothing=0.1)
    best = margins[smoothed.argmin()]
    assert torch.sigmoid(0.2 * best) == pytest.approx(0.9, abs=1e-3)


def tensors(*values: float) -> list[torch.Tensor]:
    return [torch.tensor(value) for value in values]


def test_the_dpo_loss_of_lists():
    """Behaviour 84: mean of -log sigmoid of beta times the difference of ratios; strict accuracy; scaled rewards."""
    chosen, rejected = tensors(-4.0, -5.0, -6.0), tensors(-6.0, -5.0, -5.0)
    references = tensors(-5.0, -5.0, -5.0)
    loss, metrics = losses.compute_dpo_loss(chosen, rejected, references, references, 0.5)
    differences = [1.0, 0.0, -0.5]
    expected = sum(math.log(1 + math.exp(-x)) for x in differences) / 3
    assert float(loss) == pytest.approx(expected)
    assert metrics == pytest.approx(
        {
            "dpo_loss": expected,
            "accuracy": 1 / 3,  # a tie is not told apart
            "margin": sum(differences) / 3,
            "chosen_reward": 0.5 * (1 + 0 - 1) / 3,
            "rejected_reward": 0.5 * (-1 + 0 + 0) / 3,
        }
    )


def test_figures_of_unpaired_examples_leave_out_what_there_is_none_of():
    wanted = torch.tensor([True, True, False])
    scores, z = torch.tensor([3.0, 0.5, -1.0]), torch.tensor(1.0)
    metrics = losses.example_metrics(scores, wanted, z, 2.0)
    assert metrics["accuracy"] == pytest.approx(2 / 3)
    assert metrics["margin"] == pytest.approx(2 * (1.75 + 1.0))
    alone = losses.example_metrics(scores[:2], wanted[:2], z, 2.0)
    assert "rejected_reward" not in alone
    assert "margin" not in alone


@pytest.mark.parametrize(
    ("name", "beta", "given", "words"),
    [
        ("ppo", 0.1, {}, "dpo, ipo, simpo, orpo, kto"),
        ("simpo", 0.1, {"gama": 1.0}, "has gamma, label_smoothing, and no option gama"),
        ("ipo", 0.1, {"label_smoothing": 0.1}, "has none"),
        ("dpo", 0.1, {"label_smoothing": 0.5}, "less than 0.5"),
        ("dpo", 0.1, {"label_smoothing": -0.1}, "at least 0"),
        ("kto", 0.1, {"desirable_weight": math.nan}, "desirable_weight=nan"),
        ("dpo", 0.0, {}, "above 0"),
        ("dpo", -1.0, {}, "dpo_beta=-1.0"),
        ("dpo", math.nan, {}, "dpo_beta=nan"),
        ("dpo", math.inf, {}, "dpo_beta=inf"),
    ],
)
def test_what_cannot_work_is_refused_with_what_can(name, beta, given, words):
    with pytest.raises(ConfigurationError, match=words):
        loss_options(name, beta, given)


def test_options_are_those_given_and_else_the_defaults():
    assert loss_options("simpo", 2.0, {"gamma": 1.0}) == {"beta": 2.0, "gamma": 1.0, "label_smoothing": 0.0}
    assert get_loss("kto").is_paired is False
