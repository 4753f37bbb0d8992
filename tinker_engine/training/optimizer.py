"""AdamW on an adapter's flat vector."""

import math
from contextlib import nullcontext
from dataclasses import fields

import torch
from torch import Tensor

from tinker_engine.errors import InputError, NonFiniteError
from tinker_engine.model.threads import serial
from tinker_engine.training.types import AdamParams

WORTH_SHARING = 1_000_000  # elements


class AdamW:
    """First and second moments of one adapter; decoupled weight decay."""

    def __init__(self, like: Tensor):
        self.first = torch.zeros_like(like)
        self.second = torch.zeros_like(like)
        self.steps = 0

    def step(self, weights: Tensor, grad: Tensor, params: AdamParams) -> dict[str, float]:
        """Update `weights` in place. Refuses before it changes anything."""
        check_adam_params(params)
        # A dozen short passes over a small vector: waking the other threads for each costs more than it saves.
        with serial() if weights.numel() < WORTH_SHARING else nullcontext():
            return self._step(weights, grad, params)

    def _step(self, weights: Tensor, grad: Tensor, params: AdamParams) -> dict[str, float]:
        grad_norm = float(torch.linalg.vector_norm(grad, dtype=torch.float64))
        clip = params.grad_clip_norm
        factor = min(1.0, clip / grad_norm) if clip > 0 and grad_norm > 0 else 1.0
        # A square that overflows would sit in the second moment for ever and stop those weights from moving.
        if not math.isfinite(grad_norm) or grad_norm**2 > torch.finfo(grad.dtype).max:
            raise NonFiniteError(
                "optim_step refused: the accumulated gradient, or its square, is NaN or infinite. Weights and "
                "optimizer are unchanged and the gradient was dropped; look at the weights, advantages or learning rate"
            )
        self.steps += 1
        self.first.mul_(params.beta1).add_(grad, alpha=(1 - params.beta1) * factor)
        self.second.mul_(params.beta2).addcmul_(grad, grad, value=(1 - params.beta2) * factor**2)
        first_correction = 1 - params.beta1**self.steps
        second_correction = 1 - params.beta2**self.steps
        denominator = self.second.sqrt().div_(math.sqrt(second_correction)).add_(params.eps)
        update = self.first.div(denominator).div_(first_correction)
        if params.weight_decay:
            update.add_(weights, alpha=params.weight_decay)
        weights.sub_(update, alpha=params.learning_rate)
        update_norm = params.learning_rate * float(torch.linalg.vector_norm(update, dtype=torch.float64))
        return {"grad_norm:mean": grad_norm, "update_norm:mean": update_norm}


def check_adam_params(params: AdamParams) -> None:
    for name in (field.name for field in fields(params)):
        value = getattr(params, name)
        if not math.isfinite(value) or value < 0:
            raise InputError(f"adam_params.{name}", f"must be finite and not negative, got {value}")
    for name in ("beta1", "beta2"):
        if getattr(params, name) >= 1:
            raise InputError(f"adam_params.{name}", f"must be below 1, got {getattr(params, name)}")
    if params.eps == 0:
        raise InputError(
            "adam_params.eps", "must be above 0: a weight that never had a gradient would become NaN"
        )
