"""Random work: memory stays within its bound, everything ends, and every sample is what it is alone."""

import contextlib
import random

import pytest

from tests.tinker_engine.sampling.conftest import MakeSampler
from tests.tinker_engine.sampling.support import (
    FAMILY,
    VOCABULARY,
    adapter_of,
    assert_empty,
    assert_same,
    check_books,
    make_request,
)
from tinker_engine.errors import InputError
from tinker_engine.sampling.request import Ticket
from tinker_engine.sampling.types import SampleRequest


def random_request(rng: random.Random) -> SampleRequest:
    beginning = random.Random(rng.randrange(2)).choices(range(VOCABULARY), k=40)
    ending = rng.choices(range(VOCABULARY), k=rng.choice([0, 1, 25]))
    return make_request(
        [*beginning[: rng.randrange(1, 41)], *ending],
        rng.choice([1, 5, 33, 60]),
        rng.randrange(5),
        num_samples=rng.choice([1, 1, 2, 5]),
        temperature=rng.choice([0, 0.5, 1.0]),
        top_k=rng.choice([-1, -1, 20]),
        stop=rng.choice([None, [], [3, 4]]),
        adapter=rng.choice([None, adapter_of(FAMILY, 1), adapter_of(FAMILY, 2)]),
        prompt_logprobs=rng.random() < 0.2,
    )


@pytest.mark.parametrize("seed", range(6))
def test_random_work(seed: int, make_sampler: MakeSampler):
    rng = random.Random(seed)
    sampler = make_sampler(
        cache_tokens=rng.choice([300, 450, 800]),
        most_rows=rng.choice([3, 8, 64]),
        prefill_tokens=rng.choice([7, 40, 500]),
    )
    to_come, tickets = 10, list[Ticket]()
    for _ in range(1500):
        if to_come == 0 and sampler.idle:
            break
        if to_come and rng.random() < 0.4:
            to_come -= 1
            with contextlib.suppress(InputError):  # those that the cache cannot hold
                tickets.append(sampler.submit(random_request(rng)))
        if tickets and rng.random() < 0.03:
            sampler.cancel(rng.choice(tickets))
        sampler.step()
        check_books(sampler)
    assert_empty(sampler)
    assert all(ticket.done or ticket.cancelled for ticket in tickets)
    for ticket in [ticket for ticket in tickets if ticket.done][:3]:
        (alone,) = make_sampler().sample([ticket.request])
        for found, expected in zip(ticket.result.sequences, alone.sequences, strict=True):
            assert_same(found, expected)
