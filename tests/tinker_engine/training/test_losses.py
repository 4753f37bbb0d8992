"""Each formula against a token-at-a-time reference, in value and gradient."""

import numpy as np
import pytest
import torch

from tests.tinker_engine.training.reference import DEFAULTS, sequence_loss
from tinker_engine.errors import InputError
from tinker_engine.training.losses import (
    LOSSES,
    LossInputs,
    find_loss,
    logprob_gradient,
    loss_metrics,
    read_options,
    token_losses,
)
from tinker_engine.training.own_losses import DPO

LENGTHS = [7, 1, 12]
SINGLE = [name for name, loss in LOSSES.items() if loss.group == 1]  # for pairs see test_pairs.py
EXTRA: dict[str, tuple[str, ...]] = {
    "ppo": ("clip_low_threshold", "clip_high_threshold"),
    "gspo": ("sequence_ratio_mask",),
}


def random_fields(names: tuple[str, ...], seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    size = sum(LENGTHS)
    made = {
        "weights": generator.normal(size=size),
        "advantages": np.where(generator.random(size) < 0.3, 0, generator.normal(size=size)),
        "logprobs": -2 + 0.3 * generator.normal(size=size),
        "clip_low_threshold": generator.uniform(0.5, 0.9, size),
        "clip_high_threshold": generator.uniform(1.1, 1.5, size),
        "sequence_ratio_mask": (generator.random(size) < 0.7).astype(float),
    }
    return {name: made[name] for name in names if name != "target_tokens"}


def flat_inputs(fields: dict[str, np.ndarray]) -> LossInputs:
    sequence = torch.tensor([i for i, length in enumerate(LENGTHS) for _ in range(length)])
    return LossInputs({name: torch.from_numpy(value) for name, value in fields.items()}, sequence)


@pytest.mark.parametrize("name", SINGLE)
@pytest.mark.parametrize("extra", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_values_and_gradients_equal_the_reference(name: str, extra: bool, seed: int) -> None:
    loss = LOSSES[name]
    fields = random_fields((*loss.required, *(EXTRA.get(name, ("weights",)) if extra else ())), seed)
    if name == "gspo":  # close enough to the sampler that some sequences are inside the narrow range
        fields["logprobs"] = -2 + 1e-3 * (fields["logprobs"] + 2)
    generator = torch.Generator().manual_seed(seed)
    spread = 1e-3 if name == "gspo" else 0.3
    lp = -2 + spread * torch.randn(sum(LENGTHS), dtype=torch.float64, generator=generator)
    options = read_options(name, None)
    values = token_losses(loss, lp, flat_inputs(fields), options).loss_N
    gradient = logprob_gradient(loss, lp, flat_inputs(fields), options)

    tracked = lp.clone().requires_grad_()
    expected = torch.zeros((), dtype=torch.float64)
    for rows in np.split(np.arange(sum(LENGTHS)), np.cumsum(LENGTHS)[:-1]):
        part = {field: value[rows] for field, value in fields.items()}
        expected = expected + sequence_loss(name, tracked[torch.from_numpy(rows)], part, {})
    (wanted,) = torch.autograd.grad(expected, tracked)
    torch.testing.assert_close(values.sum(), expected.detach())
    torch.testing.assert_close(gradient, wanted)
    assert gradient.abs().max() > 0


@pytest.mark.parametrize("name", sorted(set(SINGLE) - {"cispo", "gspo"}))
def test_gradients_equal_finite_differences(name: str) -> None:
    """Not for the two whose gradient is stopped on purpose; those are held against the reference."""
    loss, options = LOSSES[name], read_options(name, None)
    inputs = flat_inputs(random_fields(loss.required, seed=9))
    lp = -2 + 0.3 * torch.randn(sum(LENGTHS), dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    gradient = logprob_gradient(loss, lp, inputs, options)
    for i in range(len(lp)):
        step = torch.zeros_like(lp)
        step[i] = 1e-6
        up, down = (token_losses(loss, lp + sign * step, inputs, options).loss_N.sum() for sign in (1, -1))
        assert gradient[i].item() == pytest.approx((up - down).item() / 2e-6, abs=1e-6)


def test_defaults_are_those_documented() -> None:
    for name, options in DEFAULTS.items():
        assert dict(find_loss(name).options) == pytest.approx(options)


def test_ppo_by_hand() -> None:
    """Ratios 1.5 and 0.5 with range 0.8..1.2: a gain is capped, a loss is not."""
    ratios = torch.tensor([1.5, 1.5, 0.5, 0.5])
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0])
    inputs = LossInputs(
        {"logprobs": torch.zeros(4), "advantages": advantages}, torch.zeros(4, dtype=torch.long)
    )
    result = token_losses(LOSSES["ppo"], ratios.log(), inputs, read_options("ppo", None))
    torch.testing.assert_close(result.loss_N, torch.tensor([-1.2, 1.5, -0.5, 0.8]))
    metrics = loss_metrics(LOSSES["ppo"], ratios.log(), inputs, read_options("ppo", None))
    assert metrics["clipped_fraction:mean"] == 0.5
    assert metrics["ratio:mean"] == pytest.approx(1.0)
    assert metrics["loss:sum"] == pytest.approx(0.6)
    assert metrics["logprob_gap:max"] == pytest.approx(np.log(2))


def test_metrics_count_only_tokens_with_an_advantage() -> None:
    """Prompt positions carry a sampler logprob of 0, which says nothing."""
    inputs = LossInputs(
        {"logprobs": torch.tensor([0.0, -1.0]), "advantages": torch.tensor([0.0, 2.0])},
        torch.zeros(2, dtype=torch.long),
    )
    metrics = loss_metrics(LOSSES["ppo"], torch.tensor([-9.0, -1.5]), inputs, read_options("ppo", None))
    assert metrics["logprob_gap:max"] == metrics["logprob_gap:mean"] == pytest.approx(0.5)


def test_metrics_without_any_advantage_are_zero() -> None:
    inputs = LossInputs({"logprobs": torch.zeros(2), "advantages": torch.zeros(2)}, torch.zeros(2).long())
    metrics = loss_metrics(LOSSES["ppo"], torch.tensor([-1.0, -2.0]), inputs, read_options("ppo", None))
    assert metrics["logprob_gap:max"] == 0
    assert all(name.count(":") == 1 for name in metrics)


@pytest.mark.parametrize(
    ("name", "config", "named"),
    [
        ("ppo", {"clip_ratio": 0.2}, "clip_low_threshold, clip_high_threshold"),
        ("importance_sampling", {"beta": 1.0}, "known are: none"),
        ("ppo", {"clip_low_threshold": float("nan")}, "finite"),
        ("ppo", {"clip_low_threshold": 1.5}, "clip_low_threshold <= clip_high_threshold"),
        ("dro", {"beta": -1.0}, "beta"),
        (DPO, {"beta": -0.1}, "beta must not be negative, got -0.1"),
        (DPO, {"label_smoothing": 0.5}, "label_smoothing must be in"),
        (DPO, {"scale": 0.0}, "scale must be positive"),
        (DPO, {"gamma": 1.0}, "known are: beta, label_smoothing, scale"),
    ],
)
def test_bad_options_are_refused(name: str, config: dict[str, float], named: str) -> None:
    with pytest.raises(InputError, match=named) as error:
        read_options(name, config)
    assert error.value.field == "loss_fn_config"


def test_an_unknown_loss_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        InputError, match="unknown loss 'grpo'; known are: cross_entropy, importance_sampling"
    ):
        find_loss("grpo")
