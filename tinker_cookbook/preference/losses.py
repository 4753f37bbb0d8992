"""Losses that learn from preferences: pure functions, one value per pair (`_P`) or per example (`_N`).

They are stated over scores. The score of a completion is its logprob (the sum over its tokens), less its logprob under
the reference where the loss has one, and divided by its tokens where the loss counts per token. `beta` times the score
is what the literature calls the implicit reward.

    dpo    -log sigmoid(beta (c - r)); with label_smoothing e, the share e of the labels is taken to be wrong
    ipo    ((c - r) - 1 / (2 beta))²; per token, as its authors advise: sums of long answers would leap over the target
    simpo  -log sigmoid(beta (c - r) - gamma); per token, without a reference
    orpo   -c - beta log sigmoid(log odds(c) - log odds(r)); per token, without a reference
    kto    1 - sigmoid(± beta (s - z)), weighted, + for what is wanted; z is how far the policy is from the reference
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from tinker_cookbook.exceptions import ConfigurationError

Metrics = dict[str, float]

_CERTAIN = -1e-6  # mean logprobs above it count as it in 1 - p, which would be 0


# --- the losses -------------------------------------------------------------------------------------------


def dpo(
    chosen_P: torch.Tensor, rejected_P: torch.Tensor, *, beta: float, label_smoothing: float = 0.0
) -> torch.Tensor:
    return _smoothed(beta * (chosen_P - rejected_P), label_smoothing)


def ipo(chosen_P: torch.Tensor, rejected_P: torch.Tensor, *, beta: float) -> torch.Tensor:
    return (chosen_P - rejected_P - 1 / (2 * beta)) ** 2


def simpo(
    chosen_P: torch.Tensor,
    rejected_P: torch.Tensor,
    *,
    beta: float,
    gamma: float = 0.5,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    return _smoothed(beta * (chosen_P - rejected_P) - gamma, label_smoothing)


def orpo(chosen_P: torch.Tensor, rejected_P: torch.Tensor, *, beta: float) -> torch.Tensor:
    return -chosen_P - beta * F.logsigmoid(_log_odds(chosen_P) - _log_odds(rejected_P))


def kto(
    scores_N: torch.Tensor,
    desirable_N: torch.Tensor,
    z: torch.Tensor,
    *,
    beta: float,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> torch.Tensor:
    """`desirable_N` is bool; `z` comes from `kl_baseline`."""
    wanted_N = desirable_N.to(scores_N)
    weight_N = undesirable_weight + (desirable_weight - undesirable_weight) * wanted_N
    sign_N = 2 * wanted_N - 1
    return weight_N * torch.sigmoid(-sign_N * beta * (scores_N - z))


def kl_baseline(mismatched_N: torch.Tensor) -> torch.Tensor:
    """KTO's z, from scores of completions under prompts that are not their own.

    The estimate of a divergence can come out negative, and a divergence cannot. No gradient goes through it.
    """
    return mismatched_N.detach().mean().clamp(min=0.0)


def _smoothed(logits_P: torch.Tensor, label_smoothing: float) -> torch.Tensor:
    right_P, wrong_P = F.logsigmoid(logits_P), F.logsigmoid(-logits_P)
    return -(1 - label_smoothing) * right_P - label_smoothing * wrong_P


def _log_odds(mean_logprob_P: torch.Tensor) -> torch.Tensor:
    return mean_logprob_P - torch.log(-torch.expm1(mean_logprob_P.clamp(max=_CERTAIN)))


# --- the table --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PreferenceLoss:
    function: Callable[..., torch.Tensor]
    needs_reference: bool
    per_token: bool
    is_paired: bool = True
    usual_beta: float = 0.1
    options: Mapping[str, float] = field(default_factory=dict)  # with their defaults, besides beta

    def scores(
        self, logprobs_N: torch.Tensor, reference_N: torch.Tensor | None, lengths_N: torch.Tensor
    ) -> torch.Tensor:
        """Of completions, from the sums of their logprobs and from how many tokens they have."""
        if self.needs_reference:
            assert reference_N is not None, "the caller asked for needs_reference"
            logprobs_N = logprobs_N - reference_N
        return logprobs_N / lengths_N if self.per_token else logprobs_N


_SMOOTHING = {"label_smoothing": 0.0}

LOSSES: dict[str, PreferenceLoss] = {
    "dpo": PreferenceLoss(dpo, needs_reference=True, per_token=False, options=_SMOOTHING),
    "ipo": PreferenceLoss(ipo, needs_reference=True, per_token=True),
    "simpo": PreferenceLoss(
        simpo, needs_reference=False, per_token=True, usual_beta=2.0, options={"gamma": 0.5, **_SMOOTHING}
    ),
    "orpo": PreferenceLoss(orpo, needs_reference=False, per_token=True),
    "kto": PreferenceLoss(
        kto,
        needs_reference=True,
        per_token=False,
        is_paired=False,
        options={"desirable_weight": 1.0, "undesirable_weight": 1.0},
    ),
}


def get_loss(name: str) -> PreferenceLoss:
    if name not in LOSSES:
        raise ConfigurationError(f"no preference loss {name!r}; use one of {', '.join(LOSSES)}")
    return LOSSES[name]


def loss_options(name: str, beta: float, given: Mapping[str, float]) -> dict[str, float]:
    """All keyword arguments of a loss: beta, and its options as given, else their defaults. Checked."""
    known = get_loss(name).options
    if unknown := sorted(given.keys() - known.keys()):
        has = f"has {', '.join(known)}" if known else "has none"
        raise ConfigurationError(f"the loss {name} {has}, and no option {', '.join(unknown)}")
    options = {**known, **given}
    for option, value in options.items():
        if not (math.isfinite(value) and value >= 0):
            raise ConfigurationError(f"{option}={value} of the loss {name} must be a number of at least 0")
    if options.get("label_smoothing", 0.0) >= 0.5:
        raise ConfigurationError(
            f"label_smoothing={options['label_smoothing']} must be less than 0.5: with more, most labels are wrong"
        )
    if not (math.isfinite(beta) and beta > 0):
        raise ConfigurationError(
            f"dpo_beta={beta} must be a number above 0; usual is {LOSSES[name].usual_beta}"
        )
    return {"beta": beta, **options}


# --- figures ----------------------------------------------------------------------------------------------


def pair_metrics(chosen_P: torch.Tensor, rejected_P: torch.Tensor, beta: float) -> Metrics:
    """Of scores. Where both sides score the same, the pair is not told apart, and counts as wrong."""
    return {
        "accuracy": float((chosen_P > rejected_P).double().mean()),
        "margin": float((beta * (chosen_P - rejected_P)).mean()),
        "chosen_reward": float((beta * chosen_P).mean()),
        "rejected_reward": float((beta * rejected_P).mean()),
    }


def example_metrics(
    scores_N: torch.Tensor, desirable_N: torch.Tensor, z: torch.Tensor, beta: float
) -> Metrics:
    """Of unpaired scores: right is what is wanted above z, and what is not below it.

    A mean over nothing is left out.
    """
    right_N = torch.where(desirable_N, scores_N > z, scores_N < z)
    means = {
        name: float(beta * scores_N[which_N].mean())
        for name, which_N in (("chosen_reward", desirable_N), ("rejected_reward", ~desirable_N))
        if which_N.any()
    }
    if len(means) == 2:
        means["margin"] = means["chosen_reward"] - means["rejected_reward"]
    return {"accuracy": float(right_N.double().mean()), "kl_baseline": float(z), **means}


def compute_dpo_loss(
    chosen_logprobs: Sequence[torch.Tensor],
    rejected_logprobs: Sequence[torch.Tensor],
    chosen_ref_logprobs: Sequence[torch.Tensor],
    rejected_ref_logprobs: Sequence[torch.Tensor],
    dpo_beta: float,
) -> tuple[torch.Tensor, Metrics]:
    """The mean DPO loss of pairs, each side given by the sum of its logprobs, and what to log of them."""
    chosen_P = torch.stack(list(chosen_logprobs)) - torch.stack(list(chosen_ref_logprobs))
    rejected_P = torch.stack(list(rejected_logprobs)) - torch.stack(list(rejected_ref_logprobs))
    loss = dpo(chosen_P, rejected_P, beta=dpo_beta).mean()
    metrics = pair_metrics(chosen_P.detach(), rejected_P.detach(), dpo_beta)
    return loss, {"dpo_loss": float(loss.detach()), **metrics}
