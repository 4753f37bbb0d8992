"""Attention of many short segments in a few kernel calls.

A call for each of a hundred answers of a dozen tokens takes longer than the answers do. Here segments of about the same
length become the rows of one batch, filled up to one length and masked; the keys of a short ancestor are copied to each
of its descendants, where that is little, instead of being attended to in a call of their own.

Shapes: T tokens, B segments, Q queries, K keys, H query heads, G key/value heads, X = Q·H/G, E head width.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinker_engine.model.threads import parallel

SHORT = 64  # tokens of a segment
_WORTH_COPYING = 2048  # tokens copied in all, in place of a call
_QUERIES, _KEYS = 8, 16  # lengths are rounded up to multiples

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def copied(lengths: Sequence[int], ancestors: Sequence[Sequence[int]]) -> set[int]:
    """Segments whose keys are copied to their descendants: all of those are short, and it is little to copy."""
    descendants: dict[int, list[int]] = {}
    for segment, above in enumerate(ancestors):
        for ancestor in above:
            descendants.setdefault(ancestor, []).append(segment)
    return {
        ancestor
        for ancestor, below in descendants.items()
        if lengths[ancestor] * len(below) <= _WORTH_COPYING and all(lengths[each] <= SHORT for each in below)
    }


@dataclass(frozen=True)
class Visible:
    """The rows of a segment, and those of its ancestors that it has copies of."""

    queries: range
    before: tuple[range, ...]

    @property
    def shape(self) -> tuple[int, int]:
        keys = len(self.queries) + sum(len(rows) for rows in self.before)
        return -(-len(self.queries) // _QUERIES) * _QUERIES, -(-keys // _KEYS) * _KEYS


def batches(segments: Iterable[Visible]) -> list["SegmentBatch"]:
    alike: dict[tuple[int, int], list[Visible]] = {}
    for segment in segments:
        alike.setdefault(segment.shape, []).append(segment)
    return [SegmentBatch(members, *shape) for shape, members in alike.items()]


class SegmentBatch:
    """Segments of about the same length."""

    def __init__(self, segments: Sequence[Visible], queries: int, keys: int):
        queries_BQ = [_filled(list(each.queries), queries) for each in segments]
        keys_BK = [
            _filled([row for rows in each.before for row in rows] + list(each.queries), keys)
            for each in segments
        ]
        self._queries_BQ, self._keys_BK = torch.tensor(queries_BQ), torch.tensor(keys_BK)
        lengths_B1 = torch.tensor([len(each.queries) for each in segments])[:, None]
        before_B1 = torch.tensor([sum(len(rows) for rows in each.before) for each in segments])[:, None]
        places_BQ = torch.arange(queries).minimum(lengths_B1 - 1)
        self._is_real_BQ = torch.arange(queries) < lengths_B1
        self.rows = self._queries_BQ[self._is_real_BQ]
        self._places = self._is_real_BQ.flatten().nonzero()[:, 0]
        unseen_BQK = torch.arange(keys) > (before_B1 + places_BQ)[..., None]
        self._mask_BQK = torch.zeros(unseen_BQK.shape).masked_fill_(unseen_BQK, -torch.inf)

    def forward(self, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp of `rows`."""
        groups = k_TGE.shape[1]
        q_BGXE = _by_group(q_THE[self._queries_BQ], groups)
        k_BGKE, v_BGKE = self._keys(k_TGE), self._keys(v_TGE)
        with parallel(2 * q_BGXE.numel() * k_BGKE.shape[2]):
            out_BGXE, lse_BGX = _flash(
                q_BGXE, k_BGKE, v_BGKE, 0.0, False, attn_mask=self._mask(q_THE, groups), scale=scale
            )
        return self._real(out_BGXE), self._real(lse_BGX[..., None])[..., 0]

    def backward(
        self,
        d_out: Tensor,
        q_THE: Tensor,
        k_TGE: Tensor,
        v_TGE: Tensor,
        out_THE: Tensor,
        lse_TH: Tensor,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of the queries of `rows`, and of all keys and values, as far as they go through this batch. `out`
        and `lse` are those over all keys of a query."""
        groups, rows_BQ = k_TGE.shape[1], self._queries_BQ
        d_BQHE = d_out[rows_BQ] * self._is_real_BQ[..., None, None]
        lse_BGX = _by_group(lse_TH[rows_BQ][..., None], groups)[..., 0].contiguous()
        dq, dk, dv = _flash_backward(
            _by_group(d_BQHE, groups),
            _by_group(q_THE[rows_BQ], groups),
            self._keys(k_TGE),
            self._keys(v_TGE),
            _by_group(out_THE[rows_BQ], groups),
            lse_BGX,
            0.0,
            False,
            attn_mask=self._mask(q_THE, groups),
            scale=scale,
        )
        return self._real(dq), self._added_up(dk, len(k_TGE)), self._added_up(dv, len(k_TGE))

    def _keys(self, k_TGE: Tensor) -> Tensor:
        return k_TGE[self._keys_BK].transpose(1, 2)

    def _mask(self, q_THE: Tensor, groups: int) -> Tensor:
        repeat = q_THE.shape[1] // groups
        return self._mask_BQK.to(q_THE.dtype).repeat_interleave(repeat, dim=1)[:, None]

    def _real(self, x_BGXE: Tensor) -> Tensor:
        """[B, G, X, …] → [rows, H, …]."""
        x_BQHE = x_BGXE.unflatten(2, (self._queries_BQ.shape[1], -1)).transpose(1, 2).flatten(2, 3)
        return x_BQHE.flatten(0, 1)[self._places]

    def _added_up(self, d_BGKE: Tensor, tokens: int) -> Tensor:
        """By token: one that was copied has a share of every copy."""
        d_KF = d_BGKE.transpose(1, 2).flatten(0, 1).flatten(1)
        total_TF = torch.ops.aten.embedding_dense_backward(d_KF, self._keys_BK.flatten(), tokens, -1, False)
        return total_TF.view(tokens, d_BGKE.shape[1], d_BGKE.shape[3])


def _filled(rows: list[int], length: int) -> list[int]:
    return rows + rows[-1:] * (length - len(rows))


def _by_group(x_BQHE: Tensor, groups: int) -> Tensor:
    """Query heads of one key head become extra queries: [B, Q, H, E] → [B, G, X, E]."""
    return x_BQHE.unflatten(2, (groups, -1)).transpose(1, 2).flatten(2, 3)
