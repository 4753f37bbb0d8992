"""Sequences of any lengths → micro-batches on one flat token axis, without padding.

Sequences that begin alike share that beginning: its states are computed once, and each sequence's own
tokens attend to it. This is exact (the same sums in another order) and is what makes a group of samples
of one prompt cheap to train on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tinker_engine.model.attention import Segment
from tinker_engine.model.token_ids import common_prefix

MIN_SHARED = 16  # tokens; a shorter common prefix costs more in kernel calls than it saves


@dataclass(frozen=True)
class Family:
    """Sequences, by index, whose first `shared` tokens are the same (0 for a sequence by itself)."""

    members: tuple[int, ...]
    shared: int

    def cost(self, lengths: Sequence[int]) -> int:
        """Tokens that have to be computed."""
        return self.shared + sum(lengths[i] - self.shared for i in self.members)


@dataclass(frozen=True)
class MicroBatch:
    """One forward pass. `rows[j]` are the places on the token axis of all tokens of sequence `members[j]`."""

    members: list[int]
    rows: list[Tensor]
    tokens_T: Tensor
    positions_T: Tensor
    segments: list[Segment]
    longest: int


def pack(
    sequences: Sequence[np.ndarray], budget: int, min_shared: int = MIN_SHARED, group: int = 1
) -> list[MicroBatch]:
    """Micro-batches of at most `budget` tokens each; a sequence longer than that gets one of its own.

    Every `group` sequences in a row come into the same micro-batch.
    """
    if group > 1:
        return _pack_groups(sequences, budget, min_shared, group)
    lengths = [len(sequence) for sequence in sequences]
    families = [
        part
        for family in _find_families(sequences, min_shared)
        for part in _split_to_budget(family, lengths, budget)
    ]
    # Longest first fills evenly and puts equal lengths side by side, where one kernel call serves them all.
    families.sort(key=lambda family: (-family.cost(lengths), family.members))
    return [_lay_out(sequences, group) for group in _fill(families, lengths, budget)]


def group_tokens(sequences: Sequence[np.ndarray], group: int, min_shared: int = MIN_SHARED) -> list[int]:
    """What each group costs by itself."""
    lengths = [len(sequence) for sequence in sequences]
    groups = (range(first, first + group) for first in range(0, len(sequences), group))
    return [
        sum(family.cost(lengths) for family in _find_families(sequences, min_shared, members))
        for members in groups
    ]


def _pack_groups(
    sequences: Sequence[np.ndarray], budget: int, min_shared: int, group: int
) -> list[MicroBatch]:
    """What groups share with each other is saved too, but not counted: a micro-batch may come out smaller."""
    costs = group_tokens(sequences, group, min_shared)
    batches: list[list[int]] = []
    used = 0
    for number in sorted(range(len(costs)), key=lambda number: (-costs[number], number)):
        if not batches or used + costs[number] > budget:
            batches.append([])
            used = 0
        batches[-1] += range(number * group, (number + 1) * group)
        used += costs[number]
    return [_lay_out(sequences, list(_find_families(sequences, min_shared, members))) for members in batches]


def _find_families(
    sequences: Sequence[np.ndarray], min_shared: int, among: Sequence[int] | None = None
) -> Iterator[Family]:
    """Walk the sequences in lexicographic order, where common prefixes are neighbours."""
    among = range(len(sequences)) if among is None else among
    order = sorted(among, key=lambda i: (sequences[i].astype(">i8").tobytes(), i))
    members: list[int] = []
    shared = 0
    for i in order:
        if members:
            common = common_prefix(sequences[members[-1]], sequences[i])
            joined = min(shared, common)
            # Joining must not save less than the family saves without it.
            if joined >= min_shared and len(members) * joined >= (len(members) - 1) * shared:
                members.append(i)
                shared = joined
                continue
            yield _family(members, shared)
        members, shared = [i], len(sequences[i])
    if members:
        yield _family(members, shared)


def _family(members: list[int], shared: int) -> Family:
    return Family(tuple(members), shared if len(members) > 1 else 0)


def _split_to_budget(family: Family, lengths: Sequence[int], budget: int) -> Iterator[Family]:
    """A family too large for one micro-batch becomes several, each with its own copy of the prefix."""
    members: list[int] = []
    for i in sorted(family.members, key=lambda i: (-lengths[i], i)):
        if members and Family((*members, i), family.shared).cost(lengths) > budget:
            yield _family(members, family.shared)
            members = []
        members.append(i)
    yield _family(members, family.shared)


def _fill(families: list[Family], lengths: Sequence[int], budget: int) -> Iterator[list[Family]]:
    group: list[Family] = []
    used = 0
    for family in families:
        cost = family.cost(lengths)
        if group and used + cost > budget:
            yield group
            group, used = [], 0
        group.append(family)
        used += cost
    if group:
        yield group


def _lay_out(sequences: Sequence[np.ndarray], families: list[Family]) -> MicroBatch:
    members: list[int] = []
    rows: list[Tensor] = []
    segments: list[Segment] = []
    pieces: list[np.ndarray] = []
    positions: list[Tensor] = []
    end = 0

    def place(tokens: np.ndarray, first_position: int, parent: int | None) -> Tensor:
        nonlocal end
        segments.append(Segment(end, len(tokens), parent))
        pieces.append(tokens)
        positions.append(torch.arange(first_position, first_position + len(tokens)))
        end += len(tokens)
        return torch.arange(end - len(tokens), end)

    for family in families:
        shared = family.shared
        above = place(sequences[family.members[0]][:shared], 0, None) if shared else torch.arange(0)
        parent = len(segments) - 1 if shared else None
        for i in family.members:
            own = sequences[i][shared:]
            below = place(own, shared, parent) if len(own) else torch.arange(0)
            members.append(i)
            rows.append(torch.cat((above, below)))
    longest = max(len(sequences[i]) for i in members)
    return MicroBatch(
        members, rows, torch.from_numpy(np.concatenate(pieces)), torch.cat(positions), segments, longest
    )
