"""Rotary position embedding: frequencies per family, and the rotation itself."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tinker_engine.model.spec import RopeSpec
from tinker_engine.native import ops


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> Tensor:
    """Radians per position for each of the head_dim/2 planes."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequency = 1.0 / (rope.theta**exponent)
    if rope.kind == "linear":
        return frequency / rope.factor
    if rope.kind == "llama3":
        return _llama3(frequency, rope)
    return frequency


def _llama3(frequency: Tensor, rope: RopeSpec) -> Tensor:
    """Slow planes are stretched by `factor`, fast ones kept, those between interpolated."""
    wavelength = 2 * math.pi / frequency
    turns = rope.original_context / wavelength  # full turns within the original context
    keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    keep = keep.clamp(0.0, 1.0)
    return (1 - keep) * frequency / rope.factor + keep * frequency


class RopeTable:
    """cos and sin for positions seen so far, grown on demand up to the model's context."""

    def __init__(self, rope: RopeSpec, head_dim: int, device: torch.device, dtype: torch.dtype):
        self._frequency = inverse_frequencies(rope, head_dim).to(device)
        self._dtype = dtype
        self._cos_sin = self._table(256)

    def _table(self, length: int) -> Tensor:
        # Grown by the sampler, used by the trainer too: never a tensor that autograd refuses.
        with torch.inference_mode(False):
            positions = torch.arange(length, device=self._frequency.device, dtype=torch.float32)
            angles = torch.outer(positions, self._frequency)
            return torch.stack((angles.cos(), angles.sin())).to(self._dtype)

    def at(self, positions_T: Tensor, longest: int) -> tuple[Tensor, Tensor]:
        """[T, 1, head_dim/2] cos and sin. `longest` bounds the positions without reading them back."""
        while self._cos_sin.shape[1] < longest:
            self._cos_sin = self._table(2 * self._cos_sin.shape[1])
        cos, sin = self._cos_sin[:, positions_T]
        return cos.unsqueeze(1), sin.unsqueeze(1)


def rotate(x_THD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn plane i, made of components i and i + D/2, by its angle (Hugging Face's layout)."""
    return _Rotate.apply(x_THD, cos, sin) if torch.is_grad_enabled() else _rotate(x_THD, cos, sin)


def _rotate(x_THD: Tensor, cos: Tensor, sin: Tensor, *, back: bool = False) -> Tensor:
    if ops.serves_width(x_THD, x_THD.shape[-1] // 2):
        return ops.rotate(x_THD, cos, sin, back=back)
    low, high = x_THD.chunk(2, dim=-1)
    out = torch.empty(x_THD.shape, dtype=x_THD.dtype, device=x_THD.device)
    out_low, out_high = out.chunk(2, dim=-1)
    way = -1 if back else 1
    torch.mul(low, cos, out=out_low).addcmul_(high, sin, value=-way)
    torch.mul(high, cos, out=out_high).addcmul_(low, sin, value=way)
    return out


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_THD: Tensor, cos: Tensor, sin: Tensor):
        ctx.save_for_backward(cos, sin)
        return _rotate(x_THD, cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_THD: Tensor):
        cos, sin = ctx.saved_tensors
        return _rotate(dy_THD, cos, sin, back=True), None, None
