"""Attention while sampling, by torch: new prompt tokens into a prefix, and one new token per row.

Shapes: T tokens, B rows or prompts, Q queries, K keys, H query heads, G key/value heads, E head width, P prefix tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tinker_engine.model.attention import causal_queries, fewest_steady_queries, full_part, masked_part, merge
from tinker_engine.model.cache import Bucket, Prefix

BLOCK = 64  # tokens of a prompt whose attention is computed together
_KEYS_AT_A_TIME = 16 * 1024  # of several prompts, copied to lie side by side


@dataclass(frozen=True)
class PrefillPart:
    """The next tokens of one prompt: they see `done` tokens that are in the prefix already, and themselves."""

    rows: slice
    prefix: Prefix
    done: int


class PrefillAttention:
    """Block by block of each prompt, over all keys up to the block's end, in products of one shape for each block:
    what becomes of a token does not depend on how much of the prompt was in the cache, nor on where it was cut, nor on
    the other prompts. Blocks in the same place of several prompts are computed together."""

    def __init__(self, parts: list[PrefillPart], num_heads: int, head_dim: int, device: torch.device):
        self._parts = parts
        self._scale = head_dim**-0.5
        groups = parts[0].prefix.kv.shape[2]
        fewest = fewest_steady_queries(BLOCK, num_heads // groups, head_dim, device)
        self._batches = [_BlockBatch(queries, blocks, device) for queries, blocks in _alike(parts, fewest)]

    def __call__(self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
        for part in self._parts:
            k_GPE, v_GPE = part.prefix.kv[layer]
            end = part.done + part.rows.stop - part.rows.start
            k_GPE[:, part.done : end] = k_TGE[part.rows].transpose(0, 1)
            v_GPE[:, part.done : end] = v_TGE[part.rows].transpose(0, 1)
        out_THE = torch.empty(q_THE.shape, dtype=q_THE.dtype, device=q_THE.device)
        for batch in self._batches:
            batch.attend(layer, q_THE, out_THE, self._scale)
        return out_THE.flatten(1)


@dataclass(frozen=True)
class _Block:
    """New tokens of one prompt that lie in one block of it."""

    prefix: Prefix
    first: int  # place of the first of them in the prompt
    rows: range

    @property
    def start(self) -> int:
        return self.first // BLOCK * BLOCK

    @property
    def there(self) -> int:
        """Keys that are in the prefix: the rest of the block may not be computed yet, or not exist."""
        return self.first + len(self.rows)


def _alike(parts: list[PrefillPart], fewest: int) -> Iterator[tuple[int, list[_Block]]]:
    """Blocks in the same place with about as many new tokens, few enough for their keys to be copied together; and for
    how many queries each is computed."""
    alike: dict[tuple[int, int], list[_Block]] = {}
    for part in parts:
        place, row = part.done, part.rows.start
        while row < part.rows.stop:
            stop = min(part.rows.stop, row + BLOCK - place % BLOCK)
            block = _Block(part.prefix, place, range(row, stop))
            queries = max(fewest, 1 << (len(block.rows) - 1).bit_length())
            alike.setdefault((block.start, queries), []).append(block)
            place, row = place + len(block.rows), stop
    for (start, queries), blocks in alike.items():
        at_a_time = max(1, _KEYS_AT_A_TIME // (start + BLOCK))
        for first in range(0, len(blocks), at_a_time):
            yield queries, blocks[first : first + at_a_time]


class _BlockBatch:
    """New tokens in one block of B prompts, made Q each, over the first K keys.

    In a whole block a token has its own place among the queries, whether those before it are new or not.
    """

    def __init__(self, queries: int, blocks: list[_Block], device: torch.device):
        self._blocks = blocks
        self._keys = blocks[0].start + BLOCK
        first_B1 = torch.tensor([block.rows.start for block in blocks])[:, None]
        last_B1 = torch.tensor([block.rows.stop - 1 for block in blocks])[:, None]
        skipped_B1 = torch.tensor([block.first % BLOCK if queries == BLOCK else 0 for block in blocks])[
            :, None
        ]
        rows_BQ = first_B1 - skipped_B1 + torch.arange(queries)
        is_new_BQ = (first_B1 <= rows_BQ) & (rows_BQ <= last_B1)
        self._rows = rows_BQ[is_new_BQ].to(device)
        self._places = torch.nonzero(is_new_BQ.flatten())[:, 0].to(device)
        self._rows_BQ = torch.clamp(rows_BQ, first_B1, last_B1).to(device)  # any, where none is new
        first_place_B1 = torch.tensor([block.first for block in blocks])[:, None]
        unseen_BQK = torch.arange(self._keys) > (first_place_B1 + rows_BQ - first_B1)[..., None]
        self._mask_BQK = torch.zeros(unseen_BQK.shape).masked_fill_(unseen_BQK, -torch.inf).to(device)

    def attend(self, layer: int, q_THE: Tensor, out_THE: Tensor, scale: float) -> None:
        k_BGKE, v_BGKE = self._kv(layer)
        out_BQHE = causal_queries(q_THE[self._rows_BQ], k_BGKE, v_BGKE, self._mask_BQK, scale)
        out_THE[self._rows] = out_BQHE.flatten(0, 1)[self._places]

    def _kv(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values, with zeros where there are none yet: those are masked, but 0 · NaN is NaN."""
        first = self._blocks[0].prefix.kv[layer]
        if len(self._blocks) == 1 and self._blocks[0].there == self._keys:
            k_GKE, v_GKE = first[:, :, : self._keys]
            return k_GKE[None], v_GKE[None]
        _, groups, _, width = first.shape
        kv = first.new_zeros((2, len(self._blocks), groups, self._keys, width))
        for place, block in enumerate(self._blocks):
            kv[:, place, :, : block.there] = block.prefix.kv[layer, :, :, : block.there]
        k_BGKE, v_BGKE = kv
        return k_BGKE, v_BGKE


_STEADY_REACH = 512  # keys: attention takes so many at a time


@dataclass(frozen=True)
class RowKeys:
    """Where the keys of rows are that get one token each, by their place on the flat axis."""

    buckets: list[tuple[Bucket, list[int]]]  # the rows in each, by slot
    prefixes: list[tuple[Prefix, list[int]]]  # the readers of each


class DecodeAttention:
    """One token per row. `steady`: a row's result must not depend on what other rows there are."""

    def __init__(self, keys: RowKeys, head_dim: int, device: torch.device, *, steady: bool):
        self._scale = head_dim**-0.5
        self._steady = steady
        self._buckets = [_BucketView(bucket, places, device, steady) for bucket, places in keys.buckets]
        self._prefixes = [(prefix, _index(places, device)) for prefix, places in keys.prefixes]

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
