"""A frozen linear layer, and the autograd functions that put LoRA on it.

Shapes: T tokens, K input width, N output width, R rank, J targets fused into one layer.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from tinker_engine.model.threads import parallel, parallel_product
from tinker_engine.native import ops


class FrozenLinear:
    """A weight of the base model. It never gets a gradient; only its input does.

    On a CPU in fp32 the weight is also kept in the order in which it is read: much faster for the few rows of a
    decode step, and a row's result does not depend on how many rows share the call.
    """

    def __init__(self, weight_NK: Tensor, bias_N: Tensor | None = None):
        self.weight_NK = weight_NK
        self.bias_N = bias_N
        self.packed = ops.pack(weight_NK) if ops.serves(weight_NK.dtype, weight_NK.device) else None
        self._onednn = None if self.packed is not None else _pack(weight_NK)
        self._transposed: ops.Packed | None = None
        self._many_input_grads = False

    def __call__(self, x_TK: Tensor) -> Tensor:
        if self.packed is not None:
            return ops.product(x_TK, self.packed, self.bias_N)
        with parallel_product(len(x_TK), self.weight_NK.numel()):
            if self._onednn is None:
                return F.linear(x_TK, self.weight_NK, self.bias_N)
            return _onednn(x_TK, self._onednn, self.bias_N)

    def input_grad(self, dy_TN: Tensor) -> Tensor:
        if not _worth_packing(dy_TN):
            return dy_TN @ self.weight_NK
        transposed = self._transposed or ops.pack(self.weight_NK.T)
        if self._many_input_grads:
            self._transposed = transposed
        return ops.product(dy_TN, transposed)

    @contextmanager
    def many_input_grads(self) -> Iterator[None]:
        """For a block that asks for several: the weight is packed once."""
        self._many_input_grads = True
        try:
            yield
        finally:
            self._many_input_grads, self._transposed = False, None


_PACKING_ROWS = 64  # in a product for which it pays to pack a weight that is used once


def _worth_packing(x_TK: Tensor) -> bool:
    return len(x_TK) >= _PACKING_ROWS and ops.serves(x_TK.dtype, x_TK.device)


_PACK_ROWS_HINT = 32  # oneDNN picks its blocking for about this many rows; the layout works for any number


def packs(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether a second copy of the weights is kept."""
    return ops.serves(dtype, device) or _has_onednn(dtype, device)


def _has_onednn(dtype: torch.dtype, device: torch.device) -> bool:
    return device.type == "cpu" and dtype == torch.float32 and torch.backends.mkldnn.is_available()


def _pack(weight_NK: Tensor) -> Tensor | None:
    if not _has_onednn(weight_NK.dtype, weight_NK.device):
        return None
    with torch.no_grad():
        return torch.ops.mkldnn._reorder_linear_weight(weight_NK, _PACK_ROWS_HINT)


def _onednn(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """A row's result does not depend on how many rows there are, nor on threads. A single one is made two, for alone
    it would be added up in another order. BLAS gives no such promise, and on some processors it is far from it."""
    if len(x_TK) == 1:
        return _onednn(x_TK.expand(2, -1), weight_NK, bias_N)[:1]
    return torch.ops.mkldnn._linear_pointwise(x_TK, weight_NK, bias_N, "none", [], "")


@dataclass(frozen=True)
class LoraPair:
    """The low-rank update of one (possibly fused) linear layer: y[:, columns_j] += scale · x Aⱼᵀ Bⱼᵀ.

    Targets that share an input (q, k, v; gate, up) are stacked, so their A is one matrix product.
    """

    a_JRK: Tensor  # [J·R, K]
    b_NR: Tensor  # [N, R]; rows of target j are `columns[j]` of the output
    columns: tuple[tuple[int, int], ...]  # one (start, end) per target
    scale: float

    def add_to(self, y_TN: Tensor, x_TK: Tensor) -> Tensor:
        """Add the update to `y_TN` in place; returns x Aᵀ, which the backward pass needs."""
        with parallel(len(x_TK) * self.a_JRK.numel()):
            return self._add_to(y_TN, x_TK)

    @cached_property
    def packed(self) -> "PackedPair":
        """For weights that never change again."""
        return self._pack()

    @property
    def is_packed(self) -> bool:
        """Whether somebody has asked for `packed`."""
        return "packed" in vars(self)

    def _pack(self) -> "PackedPair":
        a_JRK, b_NR = (weight.detach().to(torch.float32) for weight in (self.a_JRK, self.b_NR))
        parts = tuple(ops.pack(b_NR[start:end]) for start, end in self.columns)
        return PackedPair(ops.pack(a_JRK), parts, self.columns, self.scale)

    def add_steadily(self, y_TN: Tensor, x_TK: Tensor) -> None:
        """`add_to` with a result for each row that does not depend on how many there are."""
        if not _has_onednn(x_TK.dtype, x_TK.device):
            self.add_to(y_TN, x_TK)
            return
        with parallel(len(x_TK) * self.a_JRK.numel()):
            h_TJR = _onednn(x_TK, self.a_JRK)
            for (start, end), h_TR in zip(self.columns, h_TJR.chunk(len(self.columns), dim=1), strict=True):
                y_TN[:, start:end].add_(_onednn(h_TR, self.b_NR[start:end]), alpha=self.scale)

    def _add_to(self, y_TN: Tensor, x_TK: Tensor) -> Tensor:
        if _worth_packing(x_TK):
            return self._pack().add_to(y_TN, x_TK)
        a_JRK, b_NR = self.a_JRK.to(x_TK.dtype), self.b_NR.to(x_TK.dtype)
        h_TJR = x_TK @ a_JRK.T
        for (start, end), h_TR in zip(self.columns, h_TJR.chunk(len(self.columns), dim=1), strict=True):
            y_TN[:, start:end].addmm_(h_TR, b_NR[start:end].T, alpha=self.scale)
        return h_TJR

    def backward(
        self, dy_TN: Tensor, x_TK: Tensor, h_TJR: Tensor, dx_TK: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Gradients of A and B; that of x, this path's share, is added to `dx_TK`."""
        a_JRK, b_NR = self.a_JRK.detach().to(x_TK.dtype), self.b_NR.detach().to(x_TK.dtype)
        if _worth_packing(x_TK):
            return self._native_backward(dy_TN, x_TK, h_TJR, dx_TK, a_JRK, b_NR)
        dh_TJR, db_NR = torch.empty_like(h_TJR), torch.empty_like(b_NR)
        for (start, end), h_TR, dh_TR in self._parts(h_TJR, dh_TJR):
            dy_part = dy_TN[:, start:end]
            db_NR[start:end] = (h_TR.T @ dy_part).T  # faster than dyᵀh, whose result is narrow
            torch.mm(dy_part, b_NR[start:end], out=dh_TR)
        dh_TJR.mul_(self.scale)
        if dx_TK is not None:
            dx_TK.addmm_(dh_TJR, a_JRK)
        return dh_TJR.T @ x_TK, db_NR.mul_(self.scale)

    def _native_backward(
        self, dy_TN: Tensor, x_TK: Tensor, h_TJR: Tensor, dx_TK: Tensor | None, a_JRK: Tensor, b_NR: Tensor
    ) -> tuple[Tensor, Tensor]:
        dh_TJR, db_NR = torch.empty_like(h_TJR), torch.empty_like(b_NR)
        for (start, end), h_TR, dh_TR in self._parts(h_TJR, dh_TJR):
            dy_part = dy_TN[:, start:end]
            db_NR[start:end] = ops.gradient(h_TR, dy_part, self.scale).T
            ops.put_product(dh_TR, dy_part, ops.pack(b_NR[start:end].T), self.scale)
        if dx_TK is not None:
            ops.add_product(dx_TK, dh_TJR, ops.pack(a_JRK.T))
        return ops.gradient(dh_TJR, x_TK), db_NR

    def _parts(self, h_TJR: Tensor, dh_TJR: Tensor) -> Iterator[tuple[tuple[int, int], Tensor, Tensor]]:
        """Columns of each target, with its part of both."""
        count = len(self.columns)
        return zip(self.columns, h_TJR.chunk(count, dim=1), dh_TJR.chunk(count, dim=1), strict=True)


@dataclass(frozen=True)
class PackedPair:
    """A `LoraPair` for our own kernels, in which a row's result does not depend on the others."""

    a_JRK: ops.Packed
    b_NR: tuple[ops.Packed, ...]  # one per target
    columns: tuple[tuple[int, int], ...]
    scale: float

    def add_to(self, y_TN: Tensor, x_TK: Tensor) -> Tensor:
        """As of `LoraPair`."""
        h_TJR = ops.product(x_TK, self.a_JRK)
        for (start, end), b_NR, h_TR in zip(
            self.columns, self.b_NR, h_TJR.chunk(len(self.columns), dim=1), strict=True
        ):
            ops.add_product(y_TN[:, start:end], h_TR, b_NR, self.scale)
        return h_TJR


@dataclass(frozen=True)
class LoraRows:
    """One adapter's update for a contiguous range of rows of the flat token axis."""

    start: int
    end: int
    pair: LoraPair
    steady: bool = False  # without gradients: a row's result must not depend on how many rows there are
    unchanging: bool = False  # the weights: worth packing

    def add_to(self, y_TN: Tensor, x_TK: Tensor) -> None:
        y_TN, x_TK = y_TN[self.start : self.end], x_TK[self.start : self.end]
        if self.unchanging and ops.serves(x_TK.dtype, x_TK.device):
            self.pair.packed.add_to(y_TN, x_TK)
        elif self.steady:
            self.pair.add_steadily(y_TN, x_TK)
        else:
            self.pair.add_to(y_TN, x_TK)


def apply_linear(x_TK: Tensor, frozen: FrozenLinear, updates: list[LoraRows]) -> Tensor:
    """The layer with every adapter's update on its own rows: one base product for all of them."""
    if torch.is_grad_enabled():
        weights = [weight for rows in updates for weight in (rows.pair.a_JRK, rows.pair.b_NR)]
        return _LoraLinear.apply(x_TK, frozen, updates, *weights)
    y_TN = frozen(x_TK)
    for rows in updates:
        rows.add_to(y_TN, x_TK)
    return y_TN


def apply_swiglu_linear(gate_up: Tensor, frozen: FrozenLinear, updates: list[LoraRows]) -> Tensor:
    """`apply_linear(silu(gate)·up)`; the product is recomputed in the backward pass, not stored."""
    if torch.is_grad_enabled():
        weights = [weight for rows in updates for weight in (rows.pair.a_JRK, rows.pair.b_NR)]
        return _SwiGluLinear.apply(gate_up, frozen, updates, *weights)
    return apply_linear(swiglu(gate_up), frozen, updates)


def swiglu(gate_up: Tensor) -> Tensor:
    if ops.serves_width(gate_up, gate_up.shape[1] // 2):
        return ops.swiglu(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def swiglu_backward(dy: Tensor, gate_up: Tensor) -> Tensor:
    """The gradient of `gate_up`."""
    if ops.serves_width(gate_up, dy.shape[1]):
        return ops.swiglu_backward(dy, gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    sigmoid = torch.sigmoid(gate)
    silu = sigmoid * gate
    # d silu(g)/dg = σ(g)·(1 + g·(1 − σ(g))) = σ + silu·(1 − σ)
    slope = torch.addcmul(sigmoid, silu, 1 - sigmoid)
    d_gate_up = torch.empty_like(gate_up)
    d_gate, d_up = d_gate_up.chunk(2, dim=-1)
    torch.mul(dy, silu, out=d_up)
    torch.mul(dy * up, slope, out=d_gate)
    return d_gate_up


# --- autograd -----------------------------------------------------------------------------------
# Both functions save the layer's input once and x Aᵀ (R wide) per adapter, and nothing else.


def _forward(ctx: Any, x_TK: Tensor, frozen: FrozenLinear, updates: list[LoraRows]) -> tuple[Tensor, list]:
    y_TN = frozen(x_TK)
    hidden = [rows.pair.add_to(y_TN[rows.start : rows.end], x_TK[rows.start : rows.end]) for rows in updates]
    ctx.frozen, ctx.updates = frozen, updates
    return y_TN, hidden


def _backward(
    ctx: Any, dy_TN: Tensor, x_TK: Tensor, hidden: tuple[Tensor, ...], needs_x: bool
) -> tuple[Tensor | None, list[Tensor]]:
    dx_TK = ctx.frozen.input_grad(dy_TN) if needs_x else None
    weight_grads: list[Tensor] = []
    for rows, h_TJR in zip(ctx.updates, hidden, strict=True):
        part = slice(rows.start, rows.end)
        dx_part = dx_TK[part] if dx_TK is not None else None
        weight_grads += rows.pair.backward(dy_TN[part], x_TK[part], h_TJR, dx_part)
    return dx_TK, weight_grads


class _LoraLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TK: Tensor, frozen: FrozenLinear, updates: list[LoraRows], *_weights: Tensor):
        y_TN, hidden = _forward(ctx, x_TK, frozen, updates)
        ctx.save_for_backward(x_TK, *hidden)
        return y_TN

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_TN: Tensor):
        x_TK, *hidden = ctx.saved_tensors
        dx_TK, weight_grads = _backward(ctx, dy_TN, x_TK, tuple(hidden), ctx.needs_input_grad[0])
        return dx_TK, None, None, *weight_grads


class _SwiGluLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, frozen: FrozenLinear, updates: list[LoraRows], *_weights: Tensor):
        y_TN, hidden = _forward(ctx, swiglu(gate_up), frozen, updates)
        ctx.save_for_backward(gate_up, *hidden)
        return y_TN

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_TN: Tensor):
        gate_up, *hidden = ctx.saved_tensors
        needs_input = ctx.needs_input_grad[0]
        dm, weight_grads = _backward(ctx, dy_TN, swiglu(gate_up), tuple(hidden), needs_input)
        d_gate_up = swiglu_backward(dm, gate_up) if dm is not None else None
        return d_gate_up, None, None, *weight_grads
