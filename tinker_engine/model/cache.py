"""Keys and values of what is being sampled, within a fixed number of tokens.

A prompt is computed into a `Prefix`, which any number of rows read and none changes. What a row adds goes
into a slot of a `Bucket`: rows of similar length lie in one block of memory and attend in one kernel call.
Buckets double in length; a row that outgrows its bucket moves to the next.

Shapes: L layers, G key/value heads, E head width, P prefix tokens, S slots, C slot capacity.
"""

import weakref
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tinker_engine.model.lora import Adapter
from tinker_engine.model.spec import ModelSpec
from tinker_engine.model.token_ids import common_prefix

SMALLEST_SLOT = 32
_KEY_TOKENS = 16  # prefixes are found by their first tokens


@dataclass(frozen=True)
class CacheShape:
    layers: int
    groups: int
    width: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> "CacheShape":
        return cls(spec.num_layers, spec.num_kv_heads, spec.head_dim, dtype, device)

    @property
    def token_bytes(self) -> int:
        return 2 * self.layers * self.groups * self.width * self.dtype.itemsize


class Prefix:
    """Keys and values [L, 2, G, P, E] of the first tokens of a context, under one adapter."""

    def __init__(self, shape: CacheShape, tokens_P: np.ndarray, adapter: Adapter | None):
        self.tokens_P = tokens_P
        self.adapter_id = id(adapter)
        self._adapter = weakref.ref(adapter) if adapter is not None else None
        self.kv = torch.empty(
            (shape.layers, 2, shape.groups, len(tokens_P), shape.width),
            dtype=shape.dtype,
            device=shape.device,
        )
        self.last_D: Tensor | None = None  # final state of the last token, once all is computed
        self.readers = 0  # rows that attend to it, and whatever else must keep it

    @property
    def adapter(self) -> Adapter | None:
        """Whoever computes or reads the prefix keeps its adapter alive; a prefix in the cache alone does not."""
        adapter = self._adapter() if self._adapter is not None else None
        assert adapter is not None or self._adapter is None, "the adapter of a prefix in use is alive"
        return adapter

    def __len__(self) -> int:
        return len(self.tokens_P)


class Bucket:
    """Rows of at most C own tokens each, in one block [L, 2, S, G, C, E] whose first rows are in use."""

    def __init__(self, shape: CacheShape, capacity: int):
        self.shape = shape
        self.capacity = capacity
        self.lengths: list[int] = []  # own tokens of the row in each slot
        self._hold(self._block(0))

    def _block(self, slots: int) -> Tensor:
        s = self.shape
        shape = (s.layers, 2, slots, s.groups, self.capacity, s.width)
        return torch.empty(shape, dtype=s.dtype, device=s.device)

    @property
    def slots(self) -> int:
        return self.kv.shape[2]

    def add(self, own: Tensor | None, spare: int) -> int:
        """A new row that begins with `own` [L, 2, G, t, E]; its slot. The block doubles if `spare` tokens of
        memory allow, so that growing copies each row a bounded number of times."""
        slot = len(self.lengths)
        if slot == self.slots:
            self._resize(2 * slot if slot * self.capacity <= spare else slot + 1)
        length = own.shape[3] if own is not None else 0
        if own is not None:
            self.kv[:, :, slot, :, :length] = own
        # Zeros, not garbage: masked keys are multiplied by a zero weight, and 0 · NaN is NaN.
        self.kv[:, :, slot, :, length:] = 0
        self.lengths.append(length)
        return slot

    def make_slots(self, rows: int) -> None:
        """Room for so many more rows, all at once: growing by and by copies what is there each time."""
        if len(self.lengths) + rows > self.slots:
            self._resize(len(self.lengths) + rows)

    def shrink(self) -> None:
        """Give back slots that no row uses."""
        if len(self.lengths) < self.slots:
            self._resize(len(self.lengths))

    def _resize(self, slots: int) -> None:
        block, rows = self._block(max(1, slots)), len(self.lengths)
        block[:, :, :rows] = self.kv[:, :, :rows]
        self._hold(block)

    def _hold(self, block: Tensor) -> None:
        self.kv = block
        # Views of each layer's keys and values, [S, G, C, E], made once: a step asks for them layer by layer.
        self.layers = [tuple(layer.unbind()) for layer in block.unbind()]

    def remove(self, slot: int) -> int:
        """Empty a slot by moving the last row into it; the slot that row had."""
        last = len(self.lengths) - 1
        if slot != last:
            self.kv[:, :, slot] = self.kv[:, :, last]
        self.lengths[slot] = self.lengths[last]
        self.lengths.pop()
        return last

    def own(self, slot: int) -> Tensor:
        return self.kv[:, :, slot, :, : self.lengths[slot]]


class PrefixCache:
    """Prefixes nobody reads any more are kept for the next request that begins alike, oldest out first.

    Those of an adapter that no longer exists can never be asked for again and go at once: an adapter may be
    larger than all its prefixes, and each step of reinforcement learning makes a new one.
    """

    def __init__(self) -> None:
        self._by_key: dict[tuple[int, bytes], list[Prefix]] = {}
        self._age: dict[int, Prefix] = {}  # by id, least recently used first
        self._watched: set[int] = set()  # ids of adapters whose end will be noted in `_gone`
        self._gone: list[int] = []
        self._tokens = 0

    def __len__(self) -> int:
        self._drop_gone()
        return len(self._age)

    @property
    def tokens(self) -> int:
        self._drop_gone()
        return self._tokens

    @property
    def read_tokens(self) -> int:
        return sum(len(prefix) for prefix in self._age.values() if prefix.readers)

    @staticmethod
    def _key(tokens: np.ndarray, adapter_id: int) -> tuple[int, bytes]:
        return adapter_id, tokens[:_KEY_TOKENS].tobytes()

    def add(self, prefix: Prefix) -> None:
        self._drop_gone()
        if prefix.adapter is not None and prefix.adapter_id not in self._watched:
            self._watched.add(prefix.adapter_id)
            # Noted, not acted upon: this may be called in the middle of anything.
            weakref.finalize(prefix.adapter, self._gone.append, prefix.adapter_id)
        self._by_key.setdefault(self._key(prefix.tokens_P, prefix.adapter_id), []).append(prefix)
        self._age[id(prefix)] = prefix
        self._tokens += len(prefix)

    def find(self, tokens: np.ndarray, adapter: Adapter | None) -> tuple[Prefix | None, int]:
        """The prefix that shares most leading tokens, and how many."""
        self._drop_gone()
        best, shared = None, 0
        for prefix in self._by_key.get(self._key(tokens, id(adapter)), ()):
            common = common_prefix(prefix.tokens_P, tokens)
            if common > shared:
                best, shared = prefix, common
        if best is not None:
            self._age[id(best)] = self._age.pop(id(best))
        return best, shared

    def evict_oldest(self) -> Prefix | None:
        """Forget the least recently used prefix without readers, if there is one."""
        self._drop_gone()
        for prefix in self._age.values():
            if prefix.readers == 0:
                self._forget(prefix)
                return prefix
        return None

    def _drop_gone(self) -> None:
        while self._gone:
            adapter_id = self._gone.pop()
            self._watched.discard(adapter_id)
            for prefix in [prefix for prefix in self._age.values() if prefix.adapter_id == adapter_id]:
                self._forget(prefix)

    def _forget(self, prefix: Prefix) -> None:
        del self._age[id(prefix)]
        self._tokens -= len(prefix)
        key = self._key(prefix.tokens_P, prefix.adapter_id)
        self._by_key[key].remove(prefix)
        if not self._by_key[key]:
            del self._by_key[key]


def slot_capacity(tokens: int) -> int:
    """The smallest slot that holds so many tokens."""
    return max(SMALLEST_SLOT, 1 << (tokens - 1).bit_length())


class KvCache:
    """All keys and values, within `budget` tokens.

    A bucket that its last row has left is kept for the rows of the next request: what the system takes to provide
    that much memory again is a large part of the time of short samples.
    """

    def __init__(self, shape: CacheShape, budget: int):
        self.shape = shape
        self.budget = budget
        self.prefixes = PrefixCache()
        self.buckets: dict[int, Bucket] = {}
        self.reserved = 0  # tokens promised to prefixes being computed and to rows about to start

    @property
    def used(self) -> int:
        rows = sum(bucket.slots * capacity for capacity, bucket in self.buckets.items())
        return self.reserved + self.prefixes.tokens + rows

    @property
    def held(self) -> int:
        """What `make_room` cannot give back."""
        rows = sum(len(bucket.lengths) * capacity for capacity, bucket in self.buckets.items())
        return self.reserved + self.prefixes.read_tokens + rows

    def make_room(self, tokens: int) -> bool:
        """Give back empty buckets, evict unused prefixes, then give back unused slots, until so many tokens fit;
        whether they do."""
        while self.used + tokens > self.budget:
            if not self.drop_empty() and self.prefixes.evict_oldest() is None:
                self._shrink()
                return self.used + tokens <= self.budget
        return True

    def drop_empty(self) -> bool:
        """Give back the buckets without rows; whether there were any."""
        empty = [capacity for capacity, bucket in self.buckets.items() if not bucket.lengths]
        for capacity in empty:
            del self.buckets[capacity]
        return bool(empty)

    def make_slots(self, capacity: int, rows: int) -> None:
        """Slots for rows that are about to be added; room was made for them."""
        self._bucket(capacity).make_slots(rows)

    def add_row(self, own: Tensor | None, room_for: int) -> tuple[Bucket, int]:
        """A slot with room for `room_for` own tokens, holding `own` already. Call `make_room` first."""
        capacity = slot_capacity(room_for)
        bucket = self._bucket(capacity)
        return bucket, bucket.add(own, spare=self.budget - self.used)

    def _bucket(self, capacity: int) -> Bucket:
        if capacity not in self.buckets:
            self.buckets[capacity] = Bucket(self.shape, capacity)
        return self.buckets[capacity]

    def _shrink(self) -> None:
        for bucket in self.buckets.values():
            bucket.shrink()
