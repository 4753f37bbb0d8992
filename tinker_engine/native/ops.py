"""The kernels, called with tensors. Each computes what a few lines of torch would, of fp32 on a CPU.

Shapes: M rows, N output width, K input width, T tokens, H query heads, G key/value heads, E head width.
"""

import ctypes
import functools
from collections.abc import Sequence
from ctypes import c_float, c_int, c_int64, c_void_p
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tinker_engine.model.threads import threads_for
from tinker_engine.native.build import library

LANES = 16  # widths must be multiples of it: no processor computes more elements at a time

_ARGUMENTS = {
    "te_pack": [c_void_p, *[c_int64] * 4, c_void_p, c_int],
    "te_product": [
        *(c_void_p, c_int64, c_int64),
        *(c_void_p, c_void_p, c_int64),
        *(c_int64, c_int64, c_int64, c_float, c_int, c_int),
    ],
    "te_gradient": [*[c_void_p, c_int64] * 3, *[c_int64] * 3, c_float, c_int],
    "te_rms_norm": [c_void_p, c_int64, *[c_void_p] * 3, c_int64, c_int64, c_float, c_int],
    "te_rms_norm_backward": [*[c_void_p] * 5, c_int64, c_int64, c_int],
    "te_swiglu": [c_void_p, c_void_p, c_int64, c_int64, c_int],
    "te_swiglu_backward": [*[c_void_p] * 3, c_int64, c_int64, c_int],
    "te_rotate": [c_void_p, c_int64, *[c_void_p] * 3, *[c_int64] * 3, c_int, c_int],
    "te_log_sum_exp": [c_void_p, c_void_p, c_int64, c_int64, c_int],
    "te_scaled_exp": [*[c_void_p] * 3, c_int64, c_int64, c_int],
    "te_attention": [
        *[c_void_p, c_int64] * 3,
        *(c_void_p, c_void_p, c_void_p, c_int64, c_void_p),
        *(c_int64, c_int64, c_int64, c_float, c_void_p, c_int64, c_int),
    ],
    "te_attention_backward": [
        c_void_p,
        *[c_void_p, c_int64] * 3,
        *[c_void_p] * 6,
        *(c_int64, c_void_p),
        *(c_int64, c_int64, c_int64, c_int64, c_float, c_void_p, c_int64, c_int),
    ],
    "te_add_lines": [c_void_p, c_void_p, c_int64, c_void_p, c_int64, c_int64, c_int64, c_int],
    "te_layers": [*[c_void_p] * 9, c_int],
}


@functools.cache
def _kernels() -> ctypes.CDLL | None:
    kernels = library()
    if kernels is not None:
        for name, arguments in _ARGUMENTS.items():
            function = getattr(kernels, name)
            function.argtypes, function.restype = arguments, None
        kernels.te_panel_width.restype = c_int64
        kernels.te_attention_room.argtypes, kernels.te_attention_room.restype = [c_int64, c_int64], c_int64
        kernels.te_attend_room.argtypes, kernels.te_attend_room.restype = [c_int64], c_int64
    return kernels


def loaded() -> ctypes.CDLL:
    kernels = _kernels()
    assert kernels is not None, "the caller asked `serves` first"
    return kernels


def serves(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether there are kernels for it."""
    return dtype == torch.float32 and device.type == "cpu" and _kernels() is not None


# --- products -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Packed:
    """A weight [N, K] in the order in which `product` reads it."""

    data: Tensor
    n: int
    k: int


def pack(weight_NK: Tensor) -> Packed:
    """Of any strides: a transposed view costs no copy of its own."""
    assert weight_NK.dtype == torch.float32, "kernels are for fp32"
    n, k = weight_NK.shape
    kernels = loaded()
    wide = kernels.te_panel_width()
    data = torch.empty(-(-n // wide) * wide * k, dtype=torch.float32)
    kernels.te_pack(weight_NK.data_ptr(), n, k, *weight_NK.stride(), data.data_ptr(), threads_for(16 * n * k))
    return Packed(data, n, k)


def product(x_MK: Tensor, weight: Packed, bias_N: Tensor | None = None) -> Tensor:
    """x wᵀ + bias. What becomes of a row does not depend on the others."""
    y_MN = torch.empty((len(x_MK), weight.n), dtype=torch.float32)
    if bias_N is None:
        return _product(x_MK, weight, y_MN, 1.0, add=False)
    return _product(x_MK, weight, y_MN.copy_(bias_N), 1.0, add=True)


def put_product(y_MN: Tensor, x_MK: Tensor, weight: Packed, scale: float = 1.0) -> None:
    """y = scale · x wᵀ; y may be a view of some columns."""
    _product(x_MK, weight, y_MN, scale, add=False)


def add_product(y_MN: Tensor, x_MK: Tensor, weight: Packed, scale: float = 1.0) -> None:
    """y += scale · x wᵀ; y may be a view of some columns."""
    _product(x_MK, weight, y_MN, scale, add=True)


def _product(x_MK: Tensor, weight: Packed, y_MN: Tensor, scale: float, *, add: bool) -> Tensor:
    rows, k = x_MK.shape
    assert (k, *y_MN.shape, y_MN.stride(1)) == (weight.k, rows, weight.n, 1), "shapes fit"
    assert x_MK.dtype == y_MN.dtype == torch.float32, "kernels are for fp32"
    loaded().te_product(
        *(x_MK.data_ptr(), *x_MK.stride()),
        *(weight.data.data_ptr(), y_MN.data_ptr(), y_MN.stride(0)),
        *(rows, weight.n, k, scale, add, threads_for(rows * weight.n * k)),
    )
    return y_MN


def gradient(x_TM: Tensor, w_TN: Tensor, scale: float = 1.0) -> Tensor:
    """scale · xᵀ w; both may be views of some columns."""
    (tokens, m), n = x_TM.shape, w_TN.shape[1]
    assert (len(w_TN), x_TM.stride(1), w_TN.stride(1)) == (tokens, 1, 1), "shapes fit"
    assert x_TM.dtype == w_TN.dtype == torch.float32, "kernels are for fp32"
    y_MN = torch.empty((m, n), dtype=torch.float32) if tokens else torch.zeros((m, n))
    loaded().te_gradient(
        *(x_TM.data_ptr(), x_TM.stride(0), w_TN.data_ptr(), w_TN.stride(0), y_MN.data_ptr(), n),
        *(tokens, m, n, scale, threads_for(tokens * m * n)),
    )
    return y_MN


# --- element by element -------------------------------------------------------------------------


def serves_width(x: Tensor, width: int) -> bool:
    """Whether there are kernels for elements of `x` in rows of that width."""
    return width % LANES == 0 and serves(x.dtype, x.device)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Over the last dimension; and the inverse of each row's root mean square."""
    width = x.shape[-1]
    rows = x.reshape(-1, width)
    y, inverse_rms = torch.empty(x.shape, dtype=torch.float32), torch.empty(len(rows), dtype=torch.float32)
    loaded().te_rms_norm(
        *(rows.data_ptr(), rows.stride(0), weight.data_ptr(), y.data_ptr(), inverse_rms.data_ptr()),
        *(len(rows), width, eps, threads_for(4 * x.numel())),
    )
    return y, inverse_rms


def rms_norm_backward(dy: Tensor, x: Tensor, weight: Tensor, inverse_rms: Tensor) -> Tensor:
    dy, x = dy.contiguous(), x.contiguous()
    dx = torch.empty(x.shape, dtype=torch.float32)
    loaded().te_rms_norm_backward(
        *(dy.data_ptr(), x.data_ptr(), weight.data_ptr(), inverse_rms.data_ptr(), dx.data_ptr()),
        *(len(inverse_rms), x.shape[-1], threads_for(4 * x.numel())),
    )
    return dx


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) · up"""
    gate_up = gate_up.contiguous()
    rows, width = len(gate_up), gate_up.shape[1] // 2
    y = torch.empty((rows, width), dtype=torch.float32)
    loaded().te_swiglu(gate_up.data_ptr(), y.data_ptr(), rows, width, threads_for(32 * rows * width))
    return y


def swiglu_backward(dy: Tensor, gate_up: Tensor) -> Tensor:
    dy, gate_up = dy.contiguous(), gate_up.contiguous()
    d_gate_up = torch.empty(gate_up.shape, dtype=torch.float32)
    loaded().te_swiglu_backward(
        *(dy.data_ptr(), gate_up.data_ptr(), d_gate_up.data_ptr()),
        *(len(dy), dy.shape[1], threads_for(32 * dy.numel())),
    )
    return d_gate_up


def rotate(x_THE: Tensor, cos: Tensor, sin: Tensor, *, back: bool) -> Tensor:
    """Rotary embedding with the angles of each row, or with those negated."""
    if x_THE.stride()[1:] != (x_THE.shape[2], 1):
        x_THE = x_THE.contiguous()
    rows, heads, width = x_THE.shape
    y = torch.empty(x_THE.shape, dtype=torch.float32)
    loaded().te_rotate(
        *(x_THE.data_ptr(), x_THE.stride(0), cos.data_ptr(), sin.data_ptr(), y.data_ptr()),
        *(rows, heads, width // 2, back, threads_for(8 * y.numel())),
    )
    return y


def log_sum_exp(x_MN: Tensor) -> Tensor:
    x_MN = x_MN.contiguous()
    y_M = torch.empty(len(x_MN), dtype=torch.float32)
    loaded().te_log_sum_exp(x_MN.data_ptr(), y_M.data_ptr(), *x_MN.shape, threads_for(16 * x_MN.numel()))
    return y_M


def scaled_exp_(x_MN: Tensor, shift_M: Tensor, factor_M: Tensor) -> None:
    """x = exp(x − shift) · factor, in place."""
    assert x_MN.is_contiguous(), "it is changed in place"
    shift_M, factor_M = shift_M.contiguous(), factor_M.contiguous()
    loaded().te_scaled_exp(
        *(x_MN.data_ptr(), shift_M.data_ptr(), factor_M.data_ptr()),
        *(*x_MN.shape, threads_for(16 * x_MN.numel())),
    )


# --- attention of whole sequences ---------------------------------------------------------------


class SegmentTable:
    """Which keys the queries of each segment see."""

    def __init__(self, segments: Sequence[tuple[range, Sequence[range]]]):
        """(rows of the segment, rows of what it goes on from): its tokens see the latter, and their own up to
        themselves."""
        lines: list[tuple[int, int, int, int]] = []
        keys: list[np.ndarray] = []
        end = 0
        for own, before in segments:
            seen = [np.arange(rows.start, rows.stop) for rows in (*before, own)]
            count = sum(map(len, seen))
            lines.append((own.start, len(own), end, count))
            keys += seen
            end += count
        self.lines = np.array(lines, dtype=np.int64).reshape(-1, 4)
        self.keys = np.concatenate(keys).astype(np.int64) if keys else np.zeros(0, dtype=np.int64)
        self.pairs = int((self.lines[:, 1] * self.lines[:, 3]).sum())  # of a query and a key


def attention(
    q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor, table: SegmentTable, scale: float
) -> tuple[Tensor, Tensor]:
    """Output [T, H, E] and log-sum-exp [T, H]."""
    q_THE, k_TGE, v_TGE = (_whole_rows(x) for x in (q_THE, k_TGE, v_TGE))
    (tokens, heads, width), groups = q_THE.shape, k_TGE.shape[1]
    out_THE, lse_TH = torch.empty(tokens, heads, width), torch.empty(tokens, heads)
    threads = threads_for(2 * heads * width * table.pairs)
    scratch, room = _attention_scratch(table, width, threads)
    loaded().te_attention(
        *(q_THE.data_ptr(), q_THE.stride(0), k_TGE.data_ptr(), k_TGE.stride(0)),
        *(v_TGE.data_ptr(), v_TGE.stride(0), out_THE.data_ptr(), lse_TH.data_ptr()),
        *(table.lines.ctypes.data, len(table.lines), table.keys.ctypes.data),
        *(heads, groups, width, scale, scratch.data_ptr(), room, threads),
    )
    return out_THE, lse_TH


def attention_backward(
    d_out: Tensor,
    q_THE: Tensor,
    k_TGE: Tensor,
    v_TGE: Tensor,
    out_THE: Tensor,
    lse_TH: Tensor,
    table: SegmentTable,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values."""
    q_THE, k_TGE, v_TGE = (_whole_rows(x) for x in (q_THE, k_TGE, v_TGE))
    d_out, out_THE = d_out.contiguous(), out_THE.contiguous()
    (tokens, heads, width), groups = q_THE.shape, k_TGE.shape[1]
    threads = threads_for(5 * heads * width * table.pairs)
    # A task for each key head of a segment; for each query head where that would leave a thread without one for long.
    split = 1 if len(table.lines) * groups >= 4 * threads else heads // groups
    dq = torch.empty(tokens, heads, width)
    d_lines = torch.empty(2, len(table.keys), groups * split, width)
    scratch, room = _attention_scratch(table, width, threads)
    loaded().te_attention_backward(
        *(d_out.data_ptr(), q_THE.data_ptr(), q_THE.stride(0), k_TGE.data_ptr(), k_TGE.stride(0)),
        *(v_TGE.data_ptr(), v_TGE.stride(0), out_THE.data_ptr(), lse_TH.data_ptr(), dq.data_ptr()),
        *(d_lines[0].data_ptr(), d_lines[1].data_ptr()),
        *(table.lines.ctypes.data, len(table.lines), table.keys.ctypes.data),
        *(heads, groups, width, split, scale, scratch.data_ptr(), room, threads),
    )
    d_kv = torch.zeros(2, tokens, groups, width)
    for lines, total in zip(d_lines, d_kv, strict=True):
        loaded().te_add_lines(
            *(lines.data_ptr(), table.keys.ctypes.data, len(table.keys)),
            *(total.data_ptr(), groups, split, width, threads),
        )
    return dq, d_kv[0], d_kv[1]


def _attention_scratch(table: SegmentTable, width: int, threads: int) -> tuple[Tensor, int]:
    room = attention_room(int(table.lines[:, 3].max()), width)
    return torch.empty(threads * room), room


def attention_room(keys: int, width: int) -> int:
    """Elements of scratch that a thread needs for segments of at most so many keys."""
    return loaded().te_attention_room(keys, width)


def attend_room(tokens: int) -> int:
    """The same for rows that attend to at most so many tokens, the new one included."""
    return loaded().te_attend_room(tokens)


def _whole_rows(x_THE: Tensor) -> Tensor:
    """Heads of a token lie side by side; a token's may be part of a longer row."""
    return x_THE if x_THE.stride()[1:] == (x_THE.shape[2], 1) else x_THE.contiguous()
