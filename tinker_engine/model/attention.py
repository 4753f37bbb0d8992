"""Attention over a flat token axis: causal within segments, and full over keys that came before.

A token's keys may lie in two places (a shared prefix and its own segment, or a cache and the new
tokens). Each place gives a partial result with its log-sum-exp; `merge` joins them exactly. The
backward pass uses the same split: a partial gradient computed with the *joined* output and
log-sum-exp is exactly that part's share.

Shapes: T tokens, H query heads, G key/value heads, E head width, P prefix tokens.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from tinker_engine.model.short_segments import SHORT, SegmentBatch, Visible, batches, copied
from tinker_engine.model.threads import parallel
from tinker_engine.native import ops

_STEADY_QUERIES = (
    8  # and multiples: BLAS adds up in another order when it has fewer rows, or so few left over
)
_MOST_SEEN = 16  # tokens of beginnings that the segments see, for each token there is
_VECTOR = 64  # elements: a multiple of what any processor computes at a time

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True)
class Segment:
    """A run of tokens that see each other causally, and all of segment `parent` and what that sees.

    What descends from a segment follows it directly on the token axis.
    """

    start: int
    length: int
    parent: int | None = None

    @property
    def end(self) -> int:
        return self.start + self.length


class PackedAttention:
    """Attention of whole sequences packed without padding. Differentiable."""

    def __init__(self, segments: list[Segment], head_dim: int):
        self.segments = segments
        self.scale = head_dim**-0.5

    def __call__(self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
        if q_THE.device.type != "cpu":
            return _sdpa(self, q_THE, k_TGE, v_TGE).flatten(1)
        if torch.is_grad_enabled():
            return _PackedAttention.apply(q_THE, k_TGE, v_TGE, self).flatten(1)
        return packed_part(self, q_THE, k_TGE, v_TGE)[0].flatten(1)

    @cached_property
    def runs(self) -> list[tuple[int, int, int]]:
        """(start, count, length) of neighbouring long segments of equal length: one kernel call each."""
        return [
            (members[0].start, len(members), length)
            for length, group in groupby(self.segments, key=lambda segment: segment.length)
            if length > SHORT and (members := list(group))
        ]

    @cached_property
    def families(self) -> list[tuple[slice, slice]]:
        """(rows of a segment, rows of all that descend from it), but for those that have copies."""
        last: dict[int, Segment] = {}  # descendant of each segment that has any
        for segment in self.segments:
            for ancestor in self.ancestors(segment):
                last[ancestor] = segment
        return [
            (slice(self.segments[above].start, end), slice(end, last[above].end))
            for above in sorted(last)
            if above not in self._copied and (end := self.segments[above].end)
        ]

    @cached_property
    def short(self) -> list[SegmentBatch]:
        return batches(
            Visible(
                range(segment.start, segment.end),
                tuple(
                    range(self.segments[above].start, self.segments[above].end)
                    for above in reversed([*self.ancestors(segment)])
                    if above in self._copied
                ),
            )
            for segment in self.segments
            if segment.length <= SHORT
        )

    @cached_property
    def _copied(self) -> set[int]:
        ancestors = [[*self.ancestors(segment)] for segment in self.segments]
        return copied([segment.length for segment in self.segments], ancestors)

    @cached_property
    def table(self) -> ops.SegmentTable | None:
        """For our own kernels; None where a long beginning has so many descendants that they would take too much
        memory, for each segment gets gradients of all that it sees."""
        rows = [range(segment.start, segment.end) for segment in self.segments]
        seen = [[rows[above] for above in self.ancestors(segment)][::-1] for segment in self.segments]
        tokens, keys = sum(map(len, rows)), sum(len(each) for before in seen for each in before)
        return None if keys > _MOST_SEEN * tokens else ops.SegmentTable(list(zip(rows, seen, strict=True)))

    def native(self, q_THE: Tensor) -> ops.SegmentTable | None:
        return self.table if ops.serves_width(q_THE, q_THE.shape[-1]) else None

    def ancestors(self, segment: Segment) -> Iterator[int]:
        """Nearest first."""
        while segment.parent is not None:
            yield segment.parent
            segment = self.segments[segment.parent]


# --- partial attention: results with their log-sum-exp ------------------------------------------


def causal_part(
    q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor, count: int, scale: float
) -> tuple[Tensor, Tensor]:
    """`count` equally long segments, each causal in itself. Output [T, H, E] and log-sum-exp [T, H]."""
    k_THE, v_THE = _repeat(k_TGE, q_THE.shape[1]), _repeat(v_TGE, q_THE.shape[1])
    q, k, v = _rows(q_THE, count), _rows(k_THE, count), _rows(v_THE, count)
    out, lse = _part(q, k, v, scale, causal=True)
    return _flat(out), lse.transpose(1, 2).flatten(0, 1)


def full_part(
    q_THE: Tensor, k_GPE: Tensor, v_GPE: Tensor, scale: float, *, steady: bool = False
) -> tuple[Tensor, Tensor]:
    """Every query sees every key: query heads of one key head become extra query rows of one product."""
    q_GXE = _group_queries(q_THE, k_GPE.shape[0])
    part = _steady_part if steady else _part
    out, lse = part(q_GXE[None], k_GPE[None], v_GPE[None], scale)
    return _ungroup(out[0], q_THE.shape[0]), _ungroup(lse[0], q_THE.shape[0])


def masked_part(
    q_BHE: Tensor, k_BGTE: Tensor, v_BGTE: Tensor, mask_BT: Tensor, scale: float, *, steady: bool = False
) -> tuple[Tensor, Tensor]:
    """One query per row over that row's own keys; `mask_BT` is added to the scores (0 or −inf)."""
    groups, repeat = k_BGTE.shape[1], q_BHE.shape[1] // k_BGTE.shape[1]
    q_BGRE, mask = q_BHE.unflatten(1, (groups, repeat)), mask_BT[:, None, None, :]
    part = _steady_part if steady else _part
    out, lse = part(q_BGRE, k_BGTE, v_BGTE, scale, mask=mask)
    return out.flatten(1, 2), lse.flatten(1, 2)


def causal_queries(q_BQHE: Tensor, k_BGKE: Tensor, v_BGKE: Tensor, mask_BQK: Tensor, scale: float) -> Tensor:
    """Several queries per row over that row's own keys, those of one key head as rows of one product."""
    (rows, queries, heads, width), groups = q_BQHE.shape, k_BGKE.shape[1]
    q_BGXE = q_BQHE.view(rows, queries, groups, -1, width).transpose(1, 2).flatten(2, 3)
    mask_BX = mask_BQK.to(q_BQHE.dtype).repeat_interleave(heads // groups, dim=1)[:, None]
    out_BGXE, _ = _part(q_BGXE, k_BGKE, v_BGKE, scale, mask=mask_BX)
    return out_BGXE.unflatten(2, (queries, -1)).transpose(1, 2).flatten(2, 3)


@functools.cache
def fewest_steady_queries(block: int, repeat: int, width: int, device: torch.device) -> int:
    """How few queries of a block can be computed by themselves and have the bits that they have in the whole block.

    Found by trying: it is BLAS that decides, by processor, in which order it adds up for how many rows.
    """
    if device.type != "cpu":
        return _STEADY_QUERIES
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(shape, generator=generator)
        for shape in ((1, block, repeat, width), (1, 1, 2 * block, width), (1, 1, 2 * block, width))
    )
    mask = torch.zeros(1, block, 2 * block)
    mask.masked_fill_(torch.ones(block, 2 * block).triu(block + 1) > 0, -torch.inf)
    whole = causal_queries(q, k, v, mask, width**-0.5)
    queries = block
    while queries > _STEADY_QUERIES:
        half = queries // 2
        for start in (0, 1, half + 3, block - half):
            some = slice(min(start, block - half), min(start, block - half) + half)
            if not torch.equal(causal_queries(q[:, some], k, v, mask[:, some], width**-0.5), whole[:, some]):
                return queries
        queries = half
    return queries


def _steady_part(
    q: Tensor, k: Tensor, v: Tensor, scale: float, *, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`_part` with a result for each query that does not depend on how many there are, or on the thread it fell to."""
    queries = q.shape[2]
    if extra := -queries % _STEADY_QUERIES:
        q = F.pad(q, (0, 0, 0, extra))
    out, lse = _part(q, k, v, scale, mask=mask)
    return out[:, :, :queries], lse[:, :, :queries]


def _part(
    q: Tensor, k: Tensor, v: Tensor, scale: float, *, causal: bool = False, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """[B, H, Q, E] × [B, H, K, E] → output and log-sum-exp [B, H, Q]. `mask` is [B, 1, Q, K], or with 1 for Q."""
    if mask is not None:
        mask = mask.expand(-1, -1, q.shape[2], -1)
    if q.device.type == "cpu":
        with parallel(2 * q.numel() * k.shape[-2]):
            return _flash(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
    # Written out for devices whose fused kernels give no log-sum-exp through a common interface.
    scores = (q @ k.transpose(-1, -2)).float() * scale
    if causal:
        scores = scores + torch.full(scores.shape[-2:], -torch.inf, device=q.device).triu(1)
    if mask is not None:
        scores = scores + mask
    lse = scores.logsumexp(-1)
    return (scores - lse[..., None]).exp().to(v.dtype) @ v, lse


def merge(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Join two partial results over disjoint keys."""
    (out_1, lse_1), (out_2, lse_2) = first, second
    share = _steady_sigmoid(lse_1 - lse_2).to(out_1.dtype)[..., None]
    return torch.lerp(out_2, out_1, share), torch.logaddexp(lse_1, lse_2)


def _steady_sigmoid(x: Tensor) -> Tensor:
    """torch has another exponential for the last few elements of a tensor, which need not be the same next time."""
    count = x.numel()
    return torch.sigmoid(F.pad(x.flatten(), (0, -count % _VECTOR)))[:count].view(x.shape)


def packed_part(
    packed: PackedAttention, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor
) -> tuple[Tensor, Tensor]:
    if (table := packed.native(q_THE)) is not None:
        return ops.attention(q_THE, k_TGE, v_TGE, table, packed.scale)
    out_THE = torch.empty(q_THE.shape, dtype=q_THE.dtype, device=q_THE.device)
    wide = torch.float64 if q_THE.dtype == torch.float64 else torch.float32
    lse_TH = torch.empty(q_THE.shape[:2], dtype=wide, device=q_THE.device)
    for start, count, length in packed.runs:
        rows = slice(start, start + count * length)
        out_THE[rows], lse_TH[rows] = causal_part(q_THE[rows], k_TGE[rows], v_TGE[rows], count, packed.scale)
    for batch in packed.short:
        out_THE[batch.rows], lse_TH[batch.rows] = batch.forward(q_THE, k_TGE, v_TGE, packed.scale)
    for above, below in packed.families:
        prefix = full_part(
            q_THE[below], k_TGE[above].transpose(0, 1), v_TGE[above].transpose(0, 1), packed.scale
        )
        out_THE[below], lse_TH[below] = merge(prefix, (out_THE[below], lse_TH[below]))
    return out_THE, lse_TH


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor, packed: PackedAttention):
        out_THE, lse_TH = packed_part(packed, q_THE, k_TGE, v_TGE)
        ctx.packed = packed
        ctx.save_for_backward(q_THE, k_TGE, v_TGE, out_THE, lse_TH)
        return out_THE

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor):
        q_THE, k_TGE, v_TGE, out_THE, lse_TH = ctx.saved_tensors
        packed: PackedAttention = ctx.packed
        if (table := packed.native(q_THE)) is not None:
            return *ops.attention_backward(
                d_out, q_THE, k_TGE, v_TGE, out_THE, lse_TH, table, packed.scale
            ), None
        (tokens, heads, width), groups = q_THE.shape, k_TGE.shape[1]
        dq = torch.empty_like(out_THE)
        dk = torch.zeros((tokens, groups, width), dtype=q_THE.dtype)
        dv = torch.zeros_like(dk)
        for start, count, length in packed.runs:
            rows = slice(start, start + count * length)
            k_THE, v_THE = _repeat(k_TGE[rows], heads), _repeat(v_TGE[rows], heads)
            parts = [_rows(x, count) for x in (d_out[rows], q_THE[rows], k_THE, v_THE, out_THE[rows])]
            lse = lse_TH[rows].view(count, length, heads).transpose(1, 2).contiguous()
            grads = _flash_backward(*parts, lse, 0.0, True, scale=packed.scale)
            dq[rows], dk_THE, dv_THE = (_flat(grad) for grad in grads)
            dk[rows] = dk_THE.view(-1, groups, heads // groups, width).sum(2)
            dv[rows] = dv_THE.view(-1, groups, heads // groups, width).sum(2)
        for batch in packed.short:
            parts = batch.backward(d_out, q_THE, k_TGE, v_TGE, out_THE, lse_TH, packed.scale)
            dq[batch.rows] = parts[0]
            dk += parts[1]
            dv += parts[2]
        for above, below in packed.families:
            grouped = [_group_queries(x, groups)[None] for x in (d_out[below], q_THE[below], out_THE[below])]
            k_GPE, v_GPE = (x[above].transpose(0, 1)[None] for x in (k_TGE, v_TGE))
            lse = _group_queries(lse_TH[below][..., None], groups)[..., 0][None]
            dq_part, dk_part, dv_part = _flash_backward(
                grouped[0],
                grouped[1],
                k_GPE,
                v_GPE,
                grouped[2],
                lse.contiguous(),
                0.0,
                False,
                scale=packed.scale,
            )
            dq[below] += _ungroup(dq_part[0], below.stop - below.start)
            dk[above] += dk_part[0].transpose(0, 1)
            dv[above] += dv_part[0].transpose(0, 1)
        return dq, dk, dv, None


def _sdpa(packed: PackedAttention, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
    """The same by torch's own attention and autograd, for devices without the kernels used above."""
    sizes = [segment.length for segment in packed.segments]
    q_parts, k_parts, v_parts = (x.split(sizes) for x in (q_THE, k_TGE, v_TGE))
    outs: list[Tensor] = []
    for i, segment in enumerate(packed.segments):
        q, k, v, mask = q_parts[i], k_parts[i], v_parts[i], None
        if above := [*packed.ancestors(segment)][::-1]:
            k = torch.cat([*(k_parts[each] for each in above), k])
            v = torch.cat([*(v_parts[each] for each in above), v])
            mask = torch.ones(len(q), len(k), dtype=torch.bool, device=q.device).tril(len(k) - len(q))
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=packed.scale, enable_gqa=True
        )
        outs.append(out[0].transpose(0, 1))
    return torch.cat(outs)


# --- layouts ------------------------------------------------------------------------------------


def _rows(x_THE: Tensor, count: int) -> Tensor:
    """[T, H, E] of `count` equal segments → [count, H, T/count, E]."""
    return x_THE.unflatten(0, (count, -1)).transpose(1, 2)


def _flat(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(0, 1)


def _repeat(x_TGE: Tensor, heads: int) -> Tensor:
    groups = x_TGE.shape[1]
    return x_TGE if groups == heads else x_TGE.repeat_interleave(heads // groups, dim=1)


def _group_queries(x_THE: Tensor, groups: int) -> Tensor:
    """[T, H, E] → [G, T·H/G, E]."""
    return x_THE.unflatten(1, (groups, -1)).transpose(0, 1).flatten(1, 2)


def _ungroup(x: Tensor, tokens: int) -> Tensor:
    """[G, T·H/G, …] → [T, H, …]."""
    return x.unflatten(1, (tokens, -1)).transpose(0, 1).flatten(1, 2)
