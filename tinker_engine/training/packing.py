"""Sequences of any lengths → micro-batches on one flat token axis, without padding.

Sequences that begin alike share that beginning: its states are computed once, and what follows attends to it.
Beginnings may begin alike in turn (groups of samples whose prompts share instructions), so that a batch is
a set of trees. This is exact (the same sums in another order) and is what makes a group of samples of one
prompt cheap to train on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from tinker_engine.model.attention import Segment
from tinker_engine.model.token_ids import common_prefix

MIN_SHARED = 16  # tokens; a shorter common stretch costs more in kernel calls than it saves


@dataclass(frozen=True)
class Stretch:
    """Tokens `start` to `end` of sequence `member`, which the branches have in common; without any, its last ones."""

    member: int
    start: int
    end: int
    branches: tuple["Stretch", ...] = ()

    @cached_property
    def cost(self) -> int:
        """Tokens that have to be computed."""
        return self.end - self.start + sum(branch.cost for branch in self.branches)


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
    trees = _grow(sequences, min_shared, range(len(sequences)))
    parts = [part for tree in trees for part in _split(tree, budget)]
    return [_lay_out(sequences, filled) for filled in _fill(sorted(parts, key=_longest_first), budget)]


def group_tokens(sequences: Sequence[np.ndarray], group: int, min_shared: int = MIN_SHARED) -> list[int]:
    """What each group costs by itself."""
    groups = (range(first, first + group) for first in range(0, len(sequences), group))
    return [sum(tree.cost for tree in _grow(sequences, min_shared, members)) for members in groups]


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
    return [_lay_out(sequences, _grow(sequences, min_shared, members)) for members in batches]


def _longest_first(stretch: Stretch) -> tuple[int, int]:
    """Fills evenly, and puts equal lengths side by side, where one kernel call serves them all."""
    return -stretch.cost, stretch.member


def _grow(sequences: Sequence[np.ndarray], min_shared: int, among: Sequence[int]) -> list[Stretch]:
    """Trees of the sequences. In lexicographic order, those with common beginnings are neighbours."""
    order = sorted(among, key=lambda i: (sequences[i].astype(">i8").tobytes(), i))
    common = [common_prefix(sequences[one], sequences[other]) for one, other in pairwise(order)]

    def grow(first: int, last: int, depth: int) -> list[Stretch]:
        """Of `order[first..last]`, which agree in their first `depth` tokens, all that follows."""
        stretches: list[Stretch] = []
        while first <= last:
            end = first
            while end < last and common[end] >= depth + min_shared:
                end += 1
            member = order[first]
            if end == first:
                stretches.append(Stretch(member, depth, len(sequences[member])))
            else:
                shared = min(common[first:end])
                stretches.append(Stretch(member, depth, shared, tuple(grow(first, end, shared))))
            first = end + 1
        return sorted(stretches, key=_longest_first)

    return grow(0, len(order) - 1, 0)


def _split(tree: Stretch, budget: int) -> Iterator[Stretch]:
    """A tree too large for one micro-batch becomes several, each with its own copy of what they share."""
    if tree.cost <= budget or not tree.branches:
        yield tree
        return
    room = budget - (tree.end - tree.start)
    part: list[Stretch] = []
    for branch in tree.branches:
        for piece in _split(branch, room):
            if part and sum(each.cost for each in part) + piece.cost > room:
                yield _prune(tree, part)
                part = []
            part.append(piece)
    yield _prune(tree, part)


def _prune(tree: Stretch, branches: list[Stretch]) -> Stretch:
    """With one branch left, the two are one stretch."""
    if len(branches) == 1:
        return replace(branches[0], start=tree.start)
    return replace(tree, branches=tuple(branches))


def _fill(trees: list[Stretch], budget: int) -> Iterator[list[Stretch]]:
    filled: list[Stretch] = []
    used = 0
    for tree in trees:
        if filled and used + tree.cost > budget:
            yield filled
            filled, used = [], 0
        filled.append(tree)
        used += tree.cost
    if filled:
        yield filled


def _lay_out(sequences: Sequence[np.ndarray], trees: list[Stretch]) -> MicroBatch:
    members: list[int] = []
    rows: list[Tensor] = []
    segments: list[Segment] = []
    pieces: list[np.ndarray] = []
    positions: list[Tensor] = []
    end = 0

    def place(stretch: Stretch, parent: int | None, above: Tensor) -> None:
        nonlocal end
        if length := stretch.end - stretch.start:
            segments.append(Segment(end, length, parent))
            parent = len(segments) - 1
            pieces.append(sequences[stretch.member][stretch.start : stretch.end])
            positions.append(torch.arange(stretch.start, stretch.end))
            above = torch.cat((above, torch.arange(end, end + length)))
            end += length
        for branch in stretch.branches:
            place(branch, parent, above)
        if not stretch.branches:
            members.append(stretch.member)
            rows.append(above)

    for tree in trees:
        place(tree, None, torch.arange(0))
    longest = max(len(sequences[i]) for i in members)
    return MicroBatch(
        members, rows, torch.from_numpy(np.concatenate(pieces)), torch.cat(positions), segments, longest
    )
