"""Continuous batching: what is shared, what waits, what is given back."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tinker_engine.sampling.conftest import MakeSampler
from tests.tinker_engine.sampling.support import (
    FAMILY,
    adapter_of,
    assert_empty,
    assert_same,
    check_books,
    finish,
    make_request,
    random_prompt,
    sample_one,
)
from tinker_engine.errors import InputError
from tinker_engine.model.cache import SMALLEST_SLOT
from tinker_engine.native import ops
from tinker_engine.sampling.step import Step
from tinker_engine.sampling.types import SampleRequest, SamplingParams

LONG = random_prompt(0, 100)
TORCHS = "llama"  # of widths for which there are no kernels: its prompts are copied


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each forward pass took."""
    counts: list[int] = []

    def counting(of: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def counted(step: Step, tokens_T: Tensor, *rest: Any) -> Tensor:
            counts.append(len(tokens_T))
            return of(step, tokens_T, *rest)

        return counted

    monkeypatch.setattr(Step, "of_prompts", counting(Step.of_prompts))
    monkeypatch.setattr(Step, "of_rows", counting(Step.of_rows))
    return counts


# --- sharing -------------------------------------------------------------------------------------


def test_a_group_shares_one_prefill_and_one_copy_of_the_prompt(
    make_sampler: MakeSampler, computed: list[int]
):
    sampler = make_sampler()
    ticket = sampler.submit(make_request(LONG, 5, num_samples=8))
    sampler.step()
    assert computed == [100, 8]  # the prompt once, then one token for each
    (prefix,) = {id(row.prefix): row.prefix for row in sampler.scheduler.rows}.values()
    assert prefix is not None
    assert (prefix.readers, len(prefix), len(sampler.cache.prefixes)) == (8, 100, 1)
    assert sampler.cache.used == 100 + 8 * SMALLEST_SLOT
    finish(sampler, ticket)
    assert computed == [100, 8, 8, 8, 8]
    assert prefix.readers == 0


def test_a_lone_sample_takes_a_copy_and_leaves_the_prefix_to_the_cache(make_sampler: MakeSampler):
    sampler = make_sampler(TORCHS)
    ticket = sampler.submit(make_request(LONG, 5))
    sampler.step()
    (row,) = sampler.scheduler.rows
    assert row.prefix is None
    assert sampler.cache.used == 100 + 128
    assert sampler.cache.make_room(16_384 - 128)  # the prefix can go
    (result,) = finish(sampler, ticket)
    assert_same(result.sequences[0], sample_one(make_sampler(TORCHS), ticket.request))


def test_a_lone_sample_reads_its_prompt_where_it_is_if_kernels_do(make_sampler: MakeSampler):
    sampler = make_sampler()
    ticket = sampler.submit(make_request(LONG[:20], 5))
    sampler.step()
    (row,) = sampler.scheduler.rows
    assert (row.prefix is not None) == ops.serves(torch.float32, sampler.decoder.device)
    (result,) = finish(sampler, ticket)
    assert result.sequences == [sample_one(make_sampler(), ticket.request)]
    assert_empty(sampler)


def test_identical_prompts_of_separate_requests_share_too(make_sampler: MakeSampler, computed: list[int]):
    sampler = make_sampler()
    tickets = [sampler.submit(make_request(LONG, 5, seed=None)) for _ in range(3)]
    sampler.step()
    assert computed == [100, 3]
    assert {row.prefix.readers for row in sampler.scheduler.rows if row.prefix} == {3}
    finish(sampler, *tickets)


@pytest.mark.parametrize(("long_prompt", "copies"), [(101, 3), (100, 0)])
def test_seeded_ones_read_a_long_prompt_where_it_is_and_copy_a_short_one(
    long_prompt: int,
    copies: int,
    make_sampler: MakeSampler,
    computed: list[int],
    monkeypatch: pytest.MonkeyPatch,
):
    """Each as if it were alone."""
    monkeypatch.setattr("tinker_engine.sampling.scheduler.LONG_PROMPT", long_prompt)
    sampler = make_sampler(TORCHS)
    tickets = [sampler.submit(make_request(LONG, 5, seed)) for seed in range(3)]
    sampler.step()
    check_books(sampler)
    assert computed == [100, 3]
    assert sum(row.prefix is None for row in sampler.scheduler.rows) == copies
    for ticket, result in zip(tickets, finish(sampler, *tickets), strict=True):
        assert result.sequences == [sample_one(make_sampler(TORCHS), ticket.request)]
    assert_empty(sampler)


def test_a_prompt_seen_before_costs_nothing(make_sampler: MakeSampler, computed: list[int]):
    sampler = make_sampler()
    first = sampler.sample([make_request(LONG, 5)])[0]
    assert first.prompt_cache_hit_tokens == 0
    computed.clear()
    again = sampler.sample([make_request(LONG, 5)])[0]
    assert again.prompt_cache_hit_tokens == 100
    assert computed == [1, 1, 1, 1]  # its last state gives the first token
    assert again.sequences == first.sequences


def test_a_shared_beginning_is_reused(make_sampler: MakeSampler, computed: list[int]):
    sampler = make_sampler()
    sampler.sample([make_request(LONG, 1)])
    for prompt, hits in (([*LONG[:80], 1, 2, 3], 80), (LONG[:64], 63), ([*LONG, 7, 8], 100)):
        computed.clear()
        (result,) = sampler.sample([make_request(prompt, 5)])
        assert result.prompt_cache_hit_tokens == hits
        assert computed[0] == len(prompt) - hits
        assert_same(result.sequences[0], sample_one(make_sampler(), make_request(prompt, 5)))


def test_a_beginning_that_is_being_computed_is_waited_for(make_sampler: MakeSampler, computed: list[int]):
    sampler = make_sampler(prefill_tokens=64)
    requests = [make_request([*LONG, last], 5) for last in range(4)]
    tickets = [sampler.submit(request) for request in requests]
    results = finish(sampler, *tickets)
    assert [result.prompt_cache_hit_tokens for result in results] == [0, 100, 100, 100]
    assert sum(computed) == 101 + 3 + 4 * 4
    for request, result in zip(requests, results, strict=True):
        assert_same(result.sequences[0], sample_one(make_sampler(), request))


def test_nothing_is_shared_between_adapters(make_sampler: MakeSampler):
    sampler = make_sampler()
    adapters = (None, adapter_of(FAMILY, 1), adapter_of(FAMILY, 2))
    for adapter in adapters:
        (result,) = sampler.sample([make_request(LONG, 5, adapter=adapter)])
        assert result.prompt_cache_hit_tokens == 0
        assert_same(result.sequences[0], sample_one(make_sampler(), make_request(LONG, 5, adapter=adapter)))
    hits = [sampler.sample([make_request(LONG, 1, adapter=a)])[0].prompt_cache_hit_tokens for a in adapters]
    assert hits == [100, 100, 100]


def test_an_adapter_that_nobody_holds_is_not_kept_by_its_prefixes(make_sampler: MakeSampler):
    sampler = make_sampler()
    snapshot = adapter_of(FAMILY, 1).snapshot()
    sampler.sample([make_request(LONG, 2), make_request(LONG, 2, adapter=snapshot, num_samples=3)])
    watch = weakref.ref(snapshot)
    assert sampler.cache.prefixes.tokens == 2 * len(LONG)
    del snapshot
    assert watch() is None
    assert sampler.cache.prefixes.tokens == len(LONG)
    (again,) = sampler.sample([make_request(LONG, 2, adapter=adapter_of(FAMILY, 1).snapshot())])
    assert again.prompt_cache_hit_tokens == 0


def test_cache_hits_tell_what_was_there_before_the_request(make_sampler: MakeSampler):
    """Its later samples start from what its first ones computed; that is no hit."""
    sampler = make_sampler(most_rows=2)
    (first,) = sampler.sample([make_request(LONG, 3, num_samples=6)])
    (again,) = sampler.sample([make_request([*LONG[:70], 1], 3, num_samples=6)])
    assert (first.prompt_cache_hit_tokens, again.prompt_cache_hit_tokens) == (0, 70)


def test_slots_are_kept_for_the_next_request_and_given_back_for_others(make_sampler: MakeSampler):
    sampler = make_sampler(TORCHS, cache_tokens=1300)
    request = make_request(LONG[:40], 3, num_samples=6)
    sampler.sample([request])
    (bucket,) = sampler.cache.buckets.values()
    block = bucket.kv
    (result,) = sampler.sample([request])
    assert sampler.cache.buckets[64].kv is block
    (fresh,) = make_sampler(TORCHS).sample([request])
    for found, expected in zip(result.sequences, fresh.sequences, strict=True):
        assert_same(found, expected)
    sampler.sample([make_request([*LONG, *LONG], 100)])  # takes nearly all there is
    assert 64 not in sampler.cache.buckets
    assert_empty(sampler)


# --- joining and leaving --------------------------------------------------------------------------


def test_requests_join_and_leave_while_others_run(make_sampler: MakeSampler):
    sampler = make_sampler()
    long = sampler.submit(make_request(random_prompt(1, 9), 20))
    for _ in range(3):
        sampler.step()
    assert len(long.sequences) == 0
    short = sampler.submit(make_request(random_prompt(2, 9), 4, num_samples=2))
    finish(sampler, short)
    assert not long.done
    assert [row.ticket for row in sampler.scheduler.rows] == [long]
    late = sampler.submit(make_request(random_prompt(3, 9), 2))
    finish(sampler, late)
    assert not long.done
    finish(sampler, long)
    assert_empty(sampler)


def test_a_long_prompt_does_not_hold_up_rows_in_progress(make_sampler: MakeSampler):
    sampler = make_sampler(prefill_tokens=10)
    running = sampler.submit(make_request([1, 2, 3], 20))
    sampler.step()
    sampler.submit(make_request(random_prompt(1, 300), 1))
    for expected in range(3, 7):  # one token a step, beside a block of the prompt
        sampler.step()
        assert len(sampler.scheduler.prefills) == 1
        assert len(sampler.scheduler.rows[0].tokens) == expected
    assert sampler.scheduler.rows[0].ticket is running


def test_most_rows_bounds_what_runs_at_once(make_sampler: MakeSampler):
    sampler = make_sampler(most_rows=5)
    ticket = sampler.submit(make_request(LONG, 4, num_samples=13))
    widths = []
    while not ticket.done:
        sampler.step()
        widths.append(len(sampler.scheduler.rows))
    assert max(widths) == 5
    assert len({tuple(sequence.tokens) for sequence in ticket.result.sequences}) == 13


# --- memory ---------------------------------------------------------------------------------------


def test_the_least_recently_used_prefix_goes_first(make_sampler: MakeSampler):
    sampler = make_sampler(TORCHS, cache_tokens=400)
    first, second, third = (random_prompt(seed, 100) for seed in (1, 2, 3))
    for prompt in (first, second, first, third):  # there is room for two of them beside a row
        sampler.sample([make_request(prompt, 1)])
    hits = [sampler.sample([make_request(p, 1)])[0].prompt_cache_hit_tokens for p in (first, third, second)]
    assert hits == [100, 100, 0]


def test_a_prefix_that_is_read_stays(make_sampler: MakeSampler):
    sampler = make_sampler(cache_tokens=430)
    reading = sampler.submit(make_request(LONG, 25, num_samples=2))
    sampler.step()
    for seed in range(3):
        finish(sampler, sampler.submit(make_request(random_prompt(seed + 1, 60), 2)))
    assert not reading.done
    (result,) = finish(sampler, reading)
    (fresh,) = make_sampler().sample([reading.request])
    for found, expected in zip(result.sequences, fresh.sequences, strict=True):
        assert_same(found, expected)


@pytest.mark.parametrize(("length", "max_tokens"), [(100, 29), (10, 119), (129, 1), (1, None)])
def test_a_request_that_may_not_fit_is_refused(
    length: int, max_tokens: int | None, make_sampler: MakeSampler
):
    sampler = make_sampler(cache_tokens=384)
    with pytest.raises(InputError, match="384") as caught:
        sampler.submit(SampleRequest(random_prompt(0, length), SamplingParams(max_tokens=max_tokens)))
    assert caught.value.field == "sampling_params.max_tokens"
    assert_empty(sampler)


def test_the_largest_request_that_is_accepted_finishes(make_sampler: MakeSampler):
    sampler = make_sampler(cache_tokens=384)
    tickets = [sampler.submit(make_request(random_prompt(i, 100), 28, num_samples=3)) for i in range(2)]
    finish(sampler, *tickets)
    assert_empty(sampler)


def test_a_sample_sent_back_is_not_kept_waiting_by_the_prefix_it_could_share(make_sampler: MakeSampler):
    """Two samples of one prompt are sent back at 225 tokens. When the second returns, the first one's 225 are
    what it shares its beginning with, and together with them it does not fit."""
    sampler = make_sampler(cache_tokens=612)
    requests = [
        make_request([1, 2, 3, 4], 140),
        make_request([5, 6, 7, 8], 140),
        make_request(LONG, 150, num_samples=2),
    ]
    tickets = [sampler.submit(request) for request in requests]
    finish(sampler, *tickets, most_steps=600)
    assert_empty(sampler)


def test_numbers_left_in_a_slot_reach_nobody(make_sampler: MakeSampler):
    sampler = make_sampler()
    neighbour = sampler.submit(make_request([9, 9, 9], 30))
    finish(sampler, sampler.submit(make_request(LONG[:3], 15)))
    with torch.inference_mode():
        for bucket in sampler.cache.buckets.values():  # as if the one that left had diverged
            bucket.kv[:, :, len(bucket.lengths) :] = torch.nan
    heir = sampler.submit(make_request(LONG[:3], 10))  # gets the slot
    for ticket, result in zip((neighbour, heir), finish(sampler, neighbour, heir), strict=True):
        assert_same(result.sequences[0], sample_one(make_sampler(), ticket.request))


# --- cancelling -----------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 4, 20])
def test_cancelling_frees_everything_and_disturbs_nobody(steps: int, make_sampler: MakeSampler):
    """After 0 steps it waits, after 1 its prompt is half done, later it has rows."""
    sampler = make_sampler(prefill_tokens=84, most_rows=6)
    staying = sampler.submit(make_request(LONG[:20], 30, num_samples=2))
    leaving = sampler.submit(make_request(LONG, 60, seed=2, num_samples=7, prompt_logprobs=True))
    for _ in range(steps):
        sampler.step()
    sampler.cancel(leaving)
    check_books(sampler)
    samples = [*sampler.scheduler.waiting, *sampler.scheduler.rows]
    samples += [sample for prefill in sampler.scheduler.prefills for sample in prefill.samples]
    assert {id(sample.ticket) for sample in samples} == {id(staying)}
    sampler.cancel(leaving)  # nothing to do
    (result,) = finish(sampler, staying)
    (fresh,) = make_sampler().sample([staying.request])
    for found, expected in zip(result.sequences, fresh.sequences, strict=True):
        assert_same(found, expected)
    assert leaving.cancelled
    assert not leaving.done
    assert_empty(sampler)


def test_cancelling_one_of_two_that_share_a_prefill(make_sampler: MakeSampler):
    sampler = make_sampler(prefill_tokens=30)
    leaving, staying = (sampler.submit(make_request(LONG, 5, seed)) for seed in (1, 2))
    sampler.step()
    sampler.cancel(leaving)
    (result,) = finish(sampler, staying)
    assert_same(result.sequences[0], sample_one(make_sampler(), staying.request))
    sampler.cancel(staying)  # done: its result stays
    assert staying.result is result
    assert_empty(sampler)


def test_a_refused_request_takes_those_of_its_call_with_it(make_sampler: MakeSampler):
    sampler = make_sampler()
    with pytest.raises(InputError, match="temperature"):
        sampler.sample([make_request(LONG, 5), make_request(LONG, 5, temperature=-1)])
    assert_empty(sampler)
