"""Attention while sampling: new prompt tokens into a prefix, and one new token per row.

Shapes: T tokens, B rows, H query heads, G key/value heads, E head width, P prefix tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tinker_engine.model.attention import causal_part, full_part, masked_part, merge
from tinker_engine.model.cache import Bucket, Prefix

BLOCK = 64  # tokens of a prompt whose attention is computed together


@dataclass(frozen=True)
class PrefillPart:
    """The next tokens of one prompt: they see `done` tokens that are in the prefix already, and themselves."""

    rows: slice
    prefix: Prefix
    done: int


class PrefillAttention:
    """Block by block, each over itself and over all before it, in products whose shape depends on its place in its
    prompt alone: what becomes of a token does not depend on how much of the prompt was in the cache, nor on where it
    was cut, nor on the other prompts."""

    def __init__(self, parts: list[PrefillPart], head_dim: int, device: torch.device):
        self._parts = parts
        self._scale = head_dim**-0.5
        self._before: list[tuple[slice, Prefix, int]] = []  # of blocks, on the padded axis
        self._there: list[
            tuple[slice, Prefix, slice]
        ] = []  # of a block that was begun: what is in the prefix
        rows: list[Tensor] = []  # of the padded axis
        places: list[Tensor] = []  # on it
        end = 0
        for part in parts:
            length = part.rows.stop - part.rows.start
            begun = part.done % BLOCK
            padded = -(-(begun + length) // BLOCK) * BLOCK
            # A block is made whole: with the keys in the prefix, whose queries are of no interest, and with its
            # last token, which those before do not see.
            first = part.rows.start - begun
            whole = torch.arange(first, first + padded)
            rows.append(whole.clamp_(part.rows.start, part.rows.stop - 1))
            places.append(torch.arange(end + begun, end + begun + length))
            if begun:
                there = slice(part.done - begun, part.done)
                self._there.append((slice(end, end + begun), part.prefix, there))
            for offset in range(0, padded, BLOCK):
                if position := part.done - begun + offset:
                    block = slice(end + offset, end + offset + BLOCK)
                    self._before.append((block, part.prefix, position))
            end += padded
        self._count = end // BLOCK
        self._whole = end == parts[-1].rows.stop  # nothing was filled up
        self._rows, self._places = torch.cat(rows).to(device), torch.cat(places).to(device)

    def __call__(self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
        for part in self._parts:
            k_GPE, v_GPE = part.prefix.kv[layer]
            end = part.done + part.rows.stop - part.rows.start
            k_GPE[:, part.done : end] = k_TGE[part.rows].transpose(0, 1)
            v_GPE[:, part.done : end] = v_TGE[part.rows].transpose(0, 1)
        if not self._whole:
            q_THE, k_TGE, v_TGE = (x[self._rows] for x in (q_THE, k_TGE, v_TGE))
        for rows, prefix, there in self._there:
            k_GPE, v_GPE = prefix.kv[layer]
            k_TGE[rows] = k_GPE[:, there].transpose(0, 1)
            v_TGE[rows] = v_GPE[:, there].transpose(0, 1)
        out_THE, lse_TH = causal_part(q_THE, k_TGE, v_TGE, self._count, self._scale)
        for block, prefix, end in self._before:
            k_GPE, v_GPE = prefix.kv[layer]
            before = full_part(q_THE[block], k_GPE[:, :end], v_GPE[:, :end], self._scale, steady=True)
            out_THE[block], _ = merge(before, (out_THE[block], lse_TH[block]))
        return (out_THE if self._whole else out_THE[self._places]).flatten(1)


_STEADY_REACH = 512  # keys: attention takes so many at a time


class DecodeAttention:
    """One token per row. Rows are given by their place on the flat axis."""

    def __init__(
        self,
        buckets: list[tuple[Bucket, list[int]]],
        prefixes: list[tuple[Prefix, list[int]]],
        head_dim: int,
        device: torch.device,
        *,
        steady: bool,
    ):
        """`buckets`: places of the rows in each bucket, by slot. `prefixes`: places of the readers of each.
        `steady`: a row's result does not depend on what other rows there are."""
        self._scale = head_dim**-0.5
        self._steady = steady
        self._buckets = [_BucketView(bucket, places, device, steady) for bucket, places in buckets]
        self._prefixes = [(prefix, _index(places, device)) for prefix, places in prefixes]

    def __call__(self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
        out_THE, lse_TH = self._own(layer, q_THE, k_TGE, v_TGE)
        for prefix, places in self._prefixes:
            k_GPE, v_GPE = prefix.kv[layer]
            shared = full_part(q_THE[places], k_GPE, v_GPE, self._scale, steady=self._steady)
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

    def __init__(self, bucket: Bucket, places: list[int], device: torch.device, steady: bool):
        self.places = _index(places, device)
        self._layers = bucket.layers
        self._steady = steady
        self._rows = len(places)
        lengths_B = torch.tensor(bucket.lengths, device=device)
        groups, capacity = bucket.kv.shape[3:5]
        heads_BG = torch.arange(self._rows * groups, device=device).view(self._rows, groups)
        self._cells = (heads_BG * capacity + lengths_B[:, None]).flatten()  # of the new token, as rows of E
        # Keys beyond a row's own add zeros to its sums, but how many are added up decides how the sum is split.
        unit = _STEADY_REACH if steady else 16
        self._reach = min(capacity, -(-(max(bucket.lengths) + 1) // unit) * unit)
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
        return masked_part(q_THE[self.places], k, v, self._mask_BT, scale, steady=self._steady)


def _index(places: list[int], device: torch.device) -> slice | Tensor:
    """A slice, which copies nothing, where the places are neighbours."""
    if places == list(range(places[0], places[0] + len(places))):
        return slice(places[0], places[0] + len(places))
    return torch.tensor(places, device=device)
