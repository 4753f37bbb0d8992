"""RMSNorm with a frozen weight: statistics in fp32, one saved tensor."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from tinker_engine.native import ops


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    if torch.is_grad_enabled():
        return _RmsNorm.apply(x, weight, eps)
    if ops.serves_width(x, x.shape[-1]):
        return ops.rms_norm(x, weight, eps)[0]
    return F.rms_norm(x, weight.shape, weight, eps)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float):
        if ops.serves_width(x, x.shape[-1]):
            y, inverse_rms = ops.rms_norm(x, weight, eps)
            ctx.save_for_backward(x, weight, inverse_rms)
            return y
        wide = x if x.dtype == torch.float64 else x.float()
        inverse_rms = torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(eps))
        ctx.save_for_backward(x, weight, inverse_rms)
        return (wide * inverse_rms).to(x.dtype) * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor):
        x, weight, inverse_rms = ctx.saved_tensors
        if ops.serves_width(x, x.shape[-1]):
            return ops.rms_norm_backward(dy, x, weight, inverse_rms), None, None
        unit = x * inverse_rms
        d_unit = dy * weight
        along = (d_unit * unit).mean(-1, keepdim=True)
        return d_unit.sub_(unit.mul_(along)).mul_(inverse_rms).to(x.dtype), None, None
