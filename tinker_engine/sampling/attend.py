"""Attention while sampling: new prompt tokens into a prefix, and one new token per row.

Shapes: T tokens, B rows, H query heads, G key/value heads, E head width, P prefix tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tinker_engine.model.attention import PackedAttention, Segment, full_part, masked_part, merge, packed_part
from tinker_engine.model.cache import Bucket, Prefix


@dataclass(frozen=True)
class PrefillPart:
    """The next tokens of one prompt: they see `done` tokens that are in the prefix already, and themselves."""

    rows: slice
    prefix: Prefix
    done: int
    store: bool  # False when the prefix is complete and only the last token's state is wanted


class PrefillAttention:
    def __init__(self, parts: list[PrefillPart], head_dim: int):
        segments = [Segment(part.rows.start, part.rows.stop - part.rows.start) for part in parts]
        self._packed = PackedAttention(segments, head_dim)
        self._parts = parts

    def __call__(self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
        out_THE, lse_TH = packed_part(self._packed, q_THE, k_TGE, v_TGE)
        for part in self._parts:
            rows, done = part.rows, part.done
            k_GPE, v_GPE = part.prefix.kv[layer]
            if done:
                before = full_part(q_THE[rows], k_GPE[:, :done], v_GPE[:, :done], self._packed.scale)
                out_THE[rows], _ = merge(before, (out_THE[rows], lse_TH[rows]))
            if part.store:
                end = done + rows.stop - rows.start
                k_GPE[:, done:end] = k_TGE[rows].transpose(0, 1)
                v_GPE[:, done:end] = v_TGE[rows].transpose(0, 1)
        return out_THE.flatten(1)


class DecodeAttention:
    """One token per row. Rows are given by their place on the flat axis."""

    def __init__(
        self,
        buckets: list[tuple[Bucket, list[int]]],
        prefixes: list[tuple[Prefix, list[int]]],
        head_dim: int,
        device: torch.device,
    ):
        """`buckets`: places of the rows in each bucket, by slot. `prefixes`: places of the readers of each."""
        self._scale = head_dim**-0.5
        self._buckets = [_BucketView(bucket, places, device) for bucket, places in buckets]
        self._prefixes = [(prefix, _index(places, device)) for prefix, places in prefixes]

    def __call__(self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
        out_THE, lse_TH = self._own(layer, q_THE, k_TGE, v_TGE)
        for prefix, places in self._prefixes:
            k_GPE, v_GPE = prefix.kv[layer]
            shared = full_part(q_THE[places], k_GPE, v_GPE, self._scale)
            out_THE[places], _ = merge(shared, (out_THE[places], lse_TH[places]))
        return out_THE.flatten(1)

    def _own(self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> tuple[Tensor, Tensor]:
        """Each row over its own keys."""
        if len(self._buckets) == 1 and isinstance(self._buckets[0].places, slice):
            return self._buckets[0].attend(layer, q_THE, k_TGE, v_TGE, self._scale)
        out_THE = torch.empty(q_THE.shape, dtype=q_THE.dtype, device=q_THE.device)
        wide = torch.float64 if q_THE.dtype == torch.float64 else torch.float32
        lse_TH = torch.empty(q_THE.shape[:2], dtype=wide, device=q_THE.device)
        for view in self._buckets:
            out_THE[view.places], lse_TH[view.places] = view.attend(layer, q_THE, k_TGE, v_TGE, self._scale)
        return out_THE, lse_TH


class _BucketView:
    """A bucket during one step: where the new token goes and which keys each row may see."""

    def __init__(self, bucket: Bucket, places: list[int], device: torch.device):
        self.places = _index(places, device)
        self._layers = bucket.layers
        self._rows = len(places)
        lengths_B = torch.tensor(bucket.lengths, device=device)
        groups, capacity = bucket.kv.shape[3:5]
        heads_BG = torch.arange(self._rows * groups, device=device).view(self._rows, groups)
        self._cells = (heads_BG * capacity + lengths_B[:, None]).flatten()  # of the new token, as rows of E
        self._reach = min(capacity, -(-(max(bucket.lengths) + 1) // 16) * 16)
        unseen = torch.arange(self._reach, device=device) > lengths_B[:, None]
        self._mask_BT = torch.zeros(unseen.shape, dtype=bucket.kv.dtype, device=device)
        self._mask_BT.masked_fill_(unseen, -torch.inf)

    def attend(
        self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        k_SGCE, v_SGCE = self._layers[layer]
        k_SGCE.view(-1, k_SGCE.shape[-1]).index_copy_(0, self._cells, k_TGE[self.places].flatten(0, 1))
        v_SGCE.view(-1, v_SGCE.shape[-1]).index_copy_(0, self._cells, v_TGE[self.places].flatten(0, 1))
        k, v = k_SGCE[: self._rows, :, : self._reach], v_SGCE[: self._rows, :, : self._reach]
        return masked_part(q_THE[self.places], k, v, self._mask_BT, scale)


def _index(places: list[int], device: torch.device) -> slice | Tensor:
    """A slice, which copies nothing, where the places are neighbours."""
    if places == list(range(places[0], places[0] + len(places))):
        return slice(places[0], places[0] + len(places))
    return torch.tensor(places, device=device)
