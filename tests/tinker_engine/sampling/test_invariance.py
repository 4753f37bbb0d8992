"""A seeded sample is the same whatever else the sampler does at the time."""

from dataclasses import dataclass

import pytest

from tests.tinker_engine.sampling.conftest import MakeSampler
from tests.tinker_engine.sampling.support import (
    adapter_of,
    assert_empty,
    assert_same,
    check_books,
    finish,
    make_request,
    random_prompt,
)
from tinker_engine.sampling.request import Ticket
from tinker_engine.sampling.sampler import Sampler
from tinker_engine.sampling.types import SampledSequence, SampleRequest

PROMPT = random_prompt(0, 37)
TEMPERATURES = (0.0, 1.0)


@dataclass(frozen=True)
class Case:
    """Two samples greedily and two at temperature 1, each pair computed with nothing else going on."""

    family: str
    alone: dict[float, list[SampledSequence]]

    def submit(self, sampler: Sampler, num_samples: int = 2, **changes) -> list[Ticket]:
        return [
            sampler.submit(watched(self.family, t, num_samples=num_samples, **changes)) for t in TEMPERATURES
        ]

    def check(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            expected = self.alone[ticket.request.params.temperature]
            for found, want in zip(ticket.result.sequences, expected, strict=False):
                assert_same(found, want)


def watched(family: str, temperature: float, **changes) -> SampleRequest:
    settings = {"adapter": adapter_of(family, 1), "num_samples": 2} | changes
    return make_request(PROMPT, 20, seed=11, temperature=temperature, **settings)


def others(family: str) -> list[SampleRequest]:
    """Of all kinds: other adapters, other lengths, the same prompt, the same beginning, scored ones."""
    mine, other = adapter_of(family, 1), adapter_of(family, 2)
    return [
        make_request(random_prompt(2, 90), 40, adapter=other, num_samples=2),
        make_request(PROMPT, 35, seed=3, num_samples=3),
        make_request(PROMPT, 6, seed=11, adapter=mine, num_samples=2, prompt_logprobs=True),
        make_request([*PROMPT[:35], 1, 2], 15, seed=4, adapter=mine),
        make_request([5], 30, temperature=0, topk_sample_logprobs=3),
        make_request(random_prompt(3, 20), 12, temperature=0.5, top_k=5, top_p=0.9, num_samples=3),
    ]


@pytest.fixture(scope="module", params=["llama3-rope", "qwen2.5", "qwen3", "mistral"])
def case(request: pytest.FixtureRequest, make_sampler: MakeSampler) -> Case:
    family = request.param
    return Case(
        family, {t: make_sampler(family).sample([watched(family, t)])[0].sequences for t in TEMPERATURES}
    )


def test_with_more_or_fewer_samples(case: Case, make_sampler: MakeSampler):
    sampler = make_sampler(case.family)
    for num_samples in (1, 5):
        tickets = case.submit(sampler, num_samples)
        finish(sampler, *tickets)
        case.check(tickets)


def test_with_requests_that_join_and_leave_at_any_step(case: Case, make_sampler: MakeSampler):
    sampler = make_sampler(case.family)
    first, second, *crowd = others(case.family)
    tickets = [sampler.submit(first), sampler.submit(second)]
    for _ in range(5):
        sampler.step()
    mine = case.submit(sampler)
    for request in crowd:
        tickets.append(sampler.submit(request))
        for _ in range(4):
            sampler.step()
            check_books(sampler)
    finish(sampler, *mine, *tickets)
    case.check(mine)
    assert_empty(sampler)


def test_in_a_cache_so_small_that_samples_are_sent_back(case: Case, make_sampler: MakeSampler):
    sampler = make_sampler(case.family, cache_tokens=300)
    older = sampler.submit(
        make_request(random_prompt(5, 8), 60, adapter=adapter_of(case.family, 2), num_samples=3)
    )
    for _ in range(18):  # it outgrows its slots while ours are under way
        sampler.step()
    mine = case.submit(sampler)
    sent_back: set[int] = set()
    while not sampler.idle:
        sampler.step()
        check_books(sampler)
        sent_back |= {id(sample.ticket) for sample in sampler.scheduler.waiting if sample.tokens}
    assert older.done
    assert sent_back >= {id(ticket) for ticket in mine}
    case.check(mine)
    assert_empty(sampler)


@pytest.mark.parametrize("prefill_tokens", [1, 36])
def test_with_the_prompt_in_pieces(case: Case, prefill_tokens: int, make_sampler: MakeSampler):
    sampler = make_sampler(case.family, prefill_tokens=prefill_tokens)
    mine = case.submit(sampler)
    finish(sampler, sampler.submit(make_request(random_prompt(4, 20), 5)), *mine)
    case.check(mine)


def test_with_few_rows_at_a_time(case: Case, make_sampler: MakeSampler):
    sampler = make_sampler(case.family, most_rows=3)
    tickets = [sampler.submit(request) for request in others(case.family)[2:5]]
    mine = case.submit(sampler)
    while not sampler.idle:
        sampler.step()
        assert len(sampler.scheduler.rows) <= 3
    assert all(ticket.done for ticket in tickets)
    case.check(mine)


@pytest.mark.parametrize(
    ("seen", "hits"),
    [(PROMPT, 37), (PROMPT[:30], 30), ([*PROMPT, 1, 2, 3], 36)],
    ids=["same", "shorter", "longer"],
)
def test_with_a_prefix_found_in_the_cache(case: Case, seen: list[int], hits: int, make_sampler: MakeSampler):
    sampler = make_sampler(case.family)
    finish(sampler, sampler.submit(make_request(seen, 1, adapter=adapter_of(case.family, 1))))
    mine = case.submit(sampler)
    finish(sampler, *mine)
    assert mine[0].result.prompt_cache_hit_tokens == hits
    case.check(mine)


def test_with_prompt_scores_on_the_side(case: Case, make_sampler: MakeSampler):
    sampler = make_sampler(case.family, prefill_tokens=16)
    mine = case.submit(sampler, prompt_logprobs=True, topk_prompt_logprobs=2, topk_sample_logprobs=3)
    finish(sampler, *mine)
    case.check(mine)


def test_beside_the_same_prompt_under_other_adapters(case: Case, make_sampler: MakeSampler):
    sampler = make_sampler(case.family)
    base, mine, other = (
        case.submit(sampler, adapter=a)
        for a in (None, adapter_of(case.family, 1), adapter_of(case.family, 2))
    )
    finish(sampler, *base, *mine, *other)
    case.check(mine)
    for tickets, adapter in ((base, None), (other, adapter_of(case.family, 2))):
        fresh = make_sampler(case.family).sample(
            [watched(case.family, t, adapter=adapter) for t in TEMPERATURES]
        )
        for ticket, expected in zip(tickets, fresh, strict=True):
            for found, want in zip(ticket.result.sequences, expected.sequences, strict=True):
                assert_same(found, want)
        assert fresh[1].sequences[0].tokens != case.alone[1.0][0].tokens  # or the adapters would do nothing
