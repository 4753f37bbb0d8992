"""The Tinker losses, each a pure function of per-token logprobs and inputs.

Every loss returns one value per token, or per group of datums; the training loss is their plain sum, with
no normalisation. The gradient with respect to the logprobs comes from autograd on these few lines. The
trainer knows none of them by name.

Notation: lp current logprob, q sampler's logprob (`logprobs`), A advantage, r = exp(lp − q).
All tensors are flat over the N tokens of a batch; `sequence_N` says which datum of the call a token is of.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from tinker_engine.errors import InputError
from tinker_engine.training.own_losses import CUSTOM, DPO, OWN_LOSSES

Options = Mapping[str, float]


@dataclass(frozen=True)
class LossInputs:
    fields: Mapping[str, Tensor]
    sequence_N: Tensor

    def __getitem__(self, name: str) -> Tensor:
        return self.fields[name]

    def get(self, name: str) -> Tensor | None:
        return self.fields.get(name)

    def to(self, device: torch.device) -> "LossInputs":
        return LossInputs(
            {name: value.to(device) for name, value in self.fields.items()}, self.sequence_N.to(device)
        )

    def select(self, index: Tensor) -> "LossInputs":
        return LossInputs({name: value[index] for name, value in self.fields.items()}, self.sequence_N[index])


@dataclass(frozen=True)
class TokenLosses:
    """All but the loss is for the metrics of losses that have it; of `means`, the mean is reported."""

    loss_N: Tensor
    ratio_N: Tensor | None = None
    clipped_N: Tensor | None = None
    means: Mapping[str, Tensor] = field(default_factory=dict)


LossFunction = Callable[[Tensor, LossInputs, Options], TokenLosses]


@dataclass(frozen=True)
class Loss:
    function: LossFunction
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    options: Options = field(default_factory=dict)  # names with their defaults
    per_token: bool = True  # a token's loss depends on no other token's logprob
    many_targets: bool = False  # accepts [T, K] targets
    group: int = 1  # datums in a row that make one loss together; beyond 1 not per token


def cross_entropy(lp: Tensor, x: LossInputs, options: Options) -> TokenLosses:
    """−w·lp with any real weight: forward_backward_custom sends gradients of arbitrary losses this way."""
    return TokenLosses(-x["weights"] * lp)


def importance_sampling(lp: Tensor, x: LossInputs, options: Options) -> TokenLosses:
    """−r·A"""
    ratio = torch.exp(lp - x["logprobs"])
    return TokenLosses(-ratio * x["advantages"], ratio)


def ppo(lp: Tensor, x: LossInputs, options: Options) -> TokenLosses:
    """−min(r·A, clip(r, low, high)·A)"""
    return _clipped_surrogate(torch.exp(lp - x["logprobs"]), x, options)


def cispo(lp: Tensor, x: LossInputs, options: Options) -> TokenLosses:
    """−stopgrad(clip(r, low, high))·A·lp: a clipped token keeps a bounded gradient instead of none."""
    ratio = torch.exp(lp - x["logprobs"]).detach()
    clipped = _clip(ratio, x, options)
    return TokenLosses(-clipped * x["advantages"] * lp, ratio, clipped != ratio)


def dro(lp: Tensor, x: LossInputs, options: Options) -> TokenLosses:
    """−(lp·A − ½·beta·(lp − q)²). The quadratic term acts on every token; `weights` can switch some off."""
    gap = lp - x["logprobs"]
    return TokenLosses(-(lp * x["advantages"] - 0.5 * options["beta"] * gap.square()), gap.exp())


def gspo(lp: Tensor, x: LossInputs, options: Options) -> TokenLosses:
    """PPO's surrogate on a sequence ratio (GSPO-token, arXiv 2507.18071).

    s is the geometric mean of r over the tokens that `sequence_ratio_mask` marks (default: those with an
    advantage). Each token carries the value of s and the gradient of its own lp.
    """
    mask = x.get("sequence_ratio_mask")
    counted = (x["advantages"] if mask is None else mask) != 0
    log_ratio = torch.where(counted, lp.detach() - x["logprobs"], 0.0)
    sequences = int(x.sequence_N.max()) + 1
    total = torch.zeros(sequences, dtype=lp.dtype, device=lp.device).index_add_(0, x.sequence_N, log_ratio)
    count = torch.zeros_like(total).index_add_(0, x.sequence_N, counted.to(lp.dtype))
    mean = (total / count.clamp(min=1))[x.sequence_N]
    return _clipped_surrogate(torch.exp(mean + lp - lp.detach()), x, options)


def dpo(lp: Tensor, x: LossInputs, options: Options) -> TokenLosses:
    """−(1 − ε)·log σ(βΔ) − ε·log σ(−βΔ) per pair (arXiv 2305.18290), times `scale`.

    Datums are chosen, rejected, chosen, rejected …; Δ is Σ w·(lp − reference) of the chosen one less that of the
    rejected one. The sum over pairs becomes their mean with `scale` 1 / pairs, which the caller alone knows when
    a batch comes in several requests. In double precision: Δ is a small difference of large sums.
    """
    datums = int(x.sequence_N.max()) + 1
    gap = x["weights"].double() * (lp.double() - x["reference_logprobs"].double())
    total = torch.zeros(datums, dtype=gap.dtype, device=gap.device).index_add(0, x.sequence_N, gap)
    present = torch.unique(x.sequence_N[x.sequence_N % 2 == 0])  # a micro-batch has some of the call's pairs
    chosen, rejected = options["beta"] * total[present], options["beta"] * total[present + 1]
    margin, smoothing = chosen - rejected, options["label_smoothing"]
    loss = -(1 - smoothing) * logsigmoid(margin) - smoothing * logsigmoid(-margin)
    rewards = {"chosen_reward": chosen, "rejected_reward": rejected, "margin": margin}
    means = {**rewards, "accuracy": (margin > 0).to(margin)}
    return TokenLosses(options["scale"] * loss, means={name: value.detach() for name, value in means.items()})


def _clipped_surrogate(ratio: Tensor, x: LossInputs, options: Options) -> TokenLosses:
    plain, bounded = ratio * x["advantages"], _clip(ratio, x, options) * x["advantages"]
    return TokenLosses(-torch.minimum(plain, bounded), ratio.detach(), (bounded < plain).detach())


def _clip(ratio: Tensor, x: LossInputs, options: Options) -> Tensor:
    """Thresholds are absolute ratios; per-token inputs of the same name override the options."""
    low, high = x.get("clip_low_threshold"), x.get("clip_high_threshold")
    low = torch.full_like(ratio, options["clip_low_threshold"]) if low is None else low
    high = torch.full_like(ratio, options["clip_high_threshold"]) if high is None else high
    return torch.clamp(ratio, low, high)


_POLICY = ("target_tokens", "logprobs", "advantages")
_CLIPS = ("clip_low_threshold", "clip_high_threshold")


def _clip_defaults(low: float, high: float) -> Options:
    return dict(zip(_CLIPS, (low, high), strict=True))


LOSSES: dict[str, Loss] = {
    "cross_entropy": Loss(cross_entropy, ("target_tokens", "weights"), many_targets=True),
    "importance_sampling": Loss(importance_sampling, _POLICY, ("weights",)),
    "ppo": Loss(ppo, _POLICY, ("weights", *_CLIPS), _clip_defaults(0.8, 1.2)),
    "cispo": Loss(cispo, _POLICY, ("weights", *_CLIPS), _clip_defaults(0.0, 4.0)),
    "dro": Loss(dro, _POLICY, ("weights",), {"beta": 0.05}),
    # GSPO's ratio is a mean over a sequence and moves far less than a token's: the paper's range.
    "gspo": Loss(
        gspo,
        _POLICY,
        ("weights", "sequence_ratio_mask", *_CLIPS),
        _clip_defaults(1 - 3e-4, 1 + 4e-4),
        per_token=False,
    ),
    DPO: Loss(
        dpo,
        ("target_tokens", "weights", "reference_logprobs"),
        options={"beta": 0.1, "label_smoothing": 0.0, "scale": 1.0},
        per_token=False,
        group=2,
    ),
}


def find_loss(name: str) -> Loss:
    if name not in LOSSES:
        raise InputError("loss_fn", f"unknown loss {name!r}; known are: {', '.join(LOSSES)}")
    return LOSSES[name]


def read_name(loss_fn: str, config: Mapping[str, float | str] | None) -> tuple[str, dict[str, float | str]]:
    """The loss's own name and the rest of its options: losses outside the Tinker API come as "custom"."""
    options = dict(config or {})
    if loss_fn != CUSTOM:
        return loss_fn, options
    name = options.pop("loss_id", None)
    if not isinstance(name, str) or name not in OWN_LOSSES:
        raise InputError(
            "loss_fn_config",
            f"unknown loss_id {name!r} for a custom loss; known are: {', '.join(OWN_LOSSES)}. Pass a loss of your own "
            "to forward_backward_custom, which runs it in your process",
        )
    return name, options


def read_options(name: str, config: Mapping[str, float] | None) -> Options:
    """The loss's defaults overridden by `config`, each name and value checked."""
    options = dict(find_loss(name).options)
    for key, value in (config or {}).items():
        if key not in options:
            known = ", ".join(options) or "none"
            raise InputError("loss_fn_config", f"unknown option {key!r} for {name}; known are: {known}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InputError("loss_fn_config", f"{key} must be a finite number, got {value!r}")
        options[key] = float(value)
    if "beta" in options and options["beta"] < 0:
        raise InputError("loss_fn_config", f"beta must not be negative, got {options['beta']}")
    if not 0 <= options.get("label_smoothing", 0.0) < 0.5:
        smoothing = options["label_smoothing"]
        raise InputError("loss_fn_config", f"label_smoothing must be in [0, 0.5), got {smoothing}")
    if options.get("scale", 1.0) <= 0:
        raise InputError("loss_fn_config", f"scale must be positive, got {options['scale']}")
    if _CLIPS[0] in options and not 0 <= options[_CLIPS[0]] <= options[_CLIPS[1]]:
        raise InputError(
            "loss_fn_config",
            f"thresholds are ratios with 0 <= clip_low_threshold <= clip_high_threshold, "
            f"got {options[_CLIPS[0]]} and {options[_CLIPS[1]]}",
        )
    return options


def token_losses(loss: Loss, lp_N: Tensor, inputs: LossInputs, options: Options) -> TokenLosses:
    """The loss per token. Policy losses may carry `weights`, which multiply it; cross-entropy's are its own."""
    result = loss.function(lp_N, inputs, options)
    weights = inputs.get("weights") if "weights" in loss.optional else None
    if weights is None:
        return result
    return replace(result, loss_N=result.loss_N * weights)


def logprob_gradient(loss: Loss, lp_N: Tensor, inputs: LossInputs, options: Options) -> Tensor:
    """d(sum of the loss)/d(lp)."""
    with torch.enable_grad():
        lp_N = lp_N.detach().requires_grad_()
        total = token_losses(loss, lp_N, inputs, options).loss_N.sum()
        return torch.autograd.grad(total, lp_N)[0]


def loss_metrics(loss: Loss, lp_N: Tensor, inputs: LossInputs, options: Options) -> dict[str, float]:
    """`loss:sum`, and what tells how far the policy is from the sampler, over tokens with an advantage."""
    with torch.no_grad():
        result = token_losses(loss, lp_N, inputs, options)
        metrics = {"loss:sum": float(result.loss_N.double().sum())}
        metrics |= {f"{name}:mean": _mean(values) for name, values in result.means.items()}
        sampler = inputs.get("logprobs")
        if sampler is not None:
            acted = inputs["advantages"] != 0
            gap = (lp_N - sampler)[acted].abs()
            metrics["logprob_gap:mean"] = _mean(gap)
            metrics["logprob_gap:max"] = float(gap.max()) if len(gap) else 0.0
            if result.ratio_N is not None:
                metrics["ratio:mean"] = _mean(result.ratio_N[acted])
            if result.clipped_N is not None:
                metrics["clipped_fraction:mean"] = _mean(result.clipped_N[acted].to(lp_N.dtype))
        return metrics


def _mean(values: Tensor) -> float:
    return float(values.double().mean()) if len(values) else 0.0
