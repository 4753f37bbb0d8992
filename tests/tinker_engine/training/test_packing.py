import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tinker_engine.model.attention import Segment
from tinker_engine.training.packing import pack

tokens = st.lists(st.integers(0, 2), min_size=1, max_size=40).map(np.array)


@settings(max_examples=200, deadline=None)
@given(st.lists(tokens, min_size=1, max_size=12), st.integers(1, 80), st.integers(1, 8))
def test_every_token_is_placed_right(sequences: list[np.ndarray], budget: int, min_shared: int) -> None:
    batches = pack(sequences, budget, min_shared)
    members = sorted(member for batch in batches for member in batch.members)
    assert members == list(range(len(sequences)))
    for batch in batches:
        assert len(batch.tokens_T) <= max(budget, max(len(sequences[i]) for i in batch.members))
        assert [segment.start for segment in batch.segments] == [
            sum(other.length for other in batch.segments[:i]) for i in range(len(batch.segments))
        ]
        for member, rows in zip(batch.members, batch.rows, strict=True):
            assert batch.tokens_T[rows].tolist() == sequences[member].tolist()
            assert batch.positions_T[rows].tolist() == list(range(len(rows)))
        for i, segment in enumerate(batch.segments):
            assert segment.length > 0
            # Neighbours of the axis but for those that do not descend from it.
            assert segment.parent is None or segment.parent < i
            above = batch.segments[segment.parent].end if segment.parent is not None else segment.start
            between = [other for other in batch.segments if above <= other.start < segment.start]
            assert all(_descends(batch.segments, other, segment.parent) for other in between)


def _descends(segments: list[Segment], segment: Segment, ancestor: int | None) -> bool:
    while segment.parent is not None and segment.parent != ancestor:
        segment = segments[segment.parent]
    return segment.parent == ancestor


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(tokens, tokens), min_size=1, max_size=6), st.integers(1, 80), st.integers(1, 8))
def test_pairs_stay_together(
    pairs: list[tuple[np.ndarray, np.ndarray]], budget: int, min_shared: int
) -> None:
    sequences = [sequence for pair in pairs for sequence in pair]
    batches = pack(sequences, budget, min_shared, group=2)
    assert sorted(i for batch in batches for i in batch.members) == list(range(len(sequences)))
    for batch in batches:
        assert {i ^ 1 for i in batch.members} == set(batch.members)
        largest = max(len(sequences[i]) + len(sequences[i ^ 1]) for i in batch.members)
        assert len(batch.tokens_T) <= max(budget, largest)
        for member, rows in zip(batch.members, batch.rows, strict=True):
            assert batch.tokens_T[rows].tolist() == sequences[member].tolist()


def test_a_pair_computes_its_prompt_once() -> None:
    pair = [np.concatenate((np.arange(100), np.full(10 + i, i))) for i in range(2)]
    (batch,) = pack(pair, 10_000, group=2)
    assert len(batch.tokens_T) == 121


def test_a_group_of_samples_computes_its_prompt_once() -> None:
    prompt = np.arange(100)
    group = [np.concatenate((prompt, np.full(10 + i, i))) for i in range(8)]
    (batch,) = pack(group, 10_000)
    assert len(batch.tokens_T) == 100 + sum(10 + i for i in range(8))


def test_a_group_too_large_for_the_budget_shares_within_each_part() -> None:
    prompt = np.arange(100)
    group = [np.concatenate((prompt, np.full(50, i))) for i in range(4)]
    batches = pack(group, 200)
    assert [len(batch.tokens_T) for batch in batches] == [200, 200]


def test_what_groups_begin_with_is_computed_once_for_all() -> None:
    system = np.arange(20)
    first = [np.concatenate((system, np.full(100, 50), np.full(5, i))) for i in range(4)]
    second = [np.concatenate((system, np.full(100, 60), np.full(5, i))) for i in range(4)]
    (batch,) = pack(first + second, 10_000)
    assert len(batch.tokens_T) == 20 + 2 * (100 + 4 * 5)


def test_equal_sequences_are_computed_once() -> None:
    (batch,) = pack([np.arange(30)] * 3, 1000)
    assert len(batch.tokens_T) == 30
