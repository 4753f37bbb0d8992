"""What can be seen of a sampler at work: tokens as they come, and the numbers for its operator."""

import pytest

from tests.tinker_engine.sampling.conftest import MakeSampler
from tests.tinker_engine.sampling.support import adapter_of, finish, make_request, random_prompt
from tinker_engine.errors import NonFiniteError
from tinker_engine.sampling.request import Ticket
from tinker_engine.sampling.sampler import Sampler

PROMPT = random_prompt(0, 20)


def follow(sampler: Sampler, ticket: Ticket) -> list[list[int]]:
    """Step to the end, collecting new tokens only; what was collected."""
    count = ticket.request.num_samples
    tokens: list[list[int]] = [[] for _ in range(count)]
    logprobs: list[list[float]] = [[] for _ in range(count)]
    while not ticket.done:
        sampler.step()
        pieces = ticket.progress([len(known) for known in tokens])
        for i, piece in enumerate(pieces):
            assert len(piece.tokens) == len(piece.logprobs) <= 2  # one of the prefill, one of the decoding
            tokens[i] += piece.tokens
            logprobs[i] += piece.logprobs
            assert (piece.stop_reason is not None) == (i in ticket.sequences)
    assert logprobs == [sequence.logprobs for sequence in ticket.result.sequences]
    return tokens


def test_tokens_can_be_followed_as_they_are_sampled(make_sampler: MakeSampler):
    sampler = make_sampler()
    ticket = sampler.submit(make_request(PROMPT, 12, num_samples=3))
    assert [piece.tokens for piece in ticket.progress()] == [[], [], []]
    found = follow(sampler, ticket)
    assert found == [sequence.tokens for sequence in ticket.result.sequences]
    assert all(len(tokens) == 12 for tokens in found)
    at_the_end = ticket.progress([12, 11, 0])
    assert [len(piece.tokens) for piece in at_the_end] == [0, 1, 12]
    assert {piece.stop_reason for piece in at_the_end} == {"length"}
    assert [piece.tokens for piece in ticket.progress()] == found


def test_samples_sent_back_to_waiting_keep_what_was_seen(make_sampler: MakeSampler):
    sampler = make_sampler(cache_tokens=300)
    tickets = [sampler.submit(make_request(random_prompt(i, 20), 60, seed=i)) for i in range(4)]
    assert follow(sampler, tickets[3]) == [tickets[3].result.sequences[0].tokens]
    assert sampler.prompt_tokens > 80  # some were computed again
    finish(sampler, *tickets)


def test_alternatives_come_along_if_asked_for(make_sampler: MakeSampler):
    sampler = make_sampler()
    ticket, plain = (sampler.submit(make_request(PROMPT, 4, topk_sample_logprobs=k)) for k in (2, 0))
    finish(sampler, ticket, plain)
    assert ticket.progress([1])[0].topk_logprobs == (ticket.result.sequences[0].topk_logprobs or [])[1:]
    assert plain.progress()[0].topk_logprobs is None


def test_a_ticket_that_failed_shows_what_came_before(make_sampler: MakeSampler):
    sampler = make_sampler()
    adapter = adapter_of("llama3-rope", 1).snapshot()
    ticket = sampler.submit(make_request(PROMPT, 12, adapter=adapter))
    sampler.step()
    seen = ticket.progress()[0].tokens
    adapter.flat.fill_(float("nan"))
    for pair in adapter.pairs.values():
        vars(pair).pop("packed", None)  # made of the weights as they were
    while not ticket.done:
        sampler.step()
    assert ticket.progress()[0].tokens == seen
    assert ticket.progress()[0].stop_reason is None
    with pytest.raises(NonFiniteError):
        _ = ticket.result


# --- numbers ------------------------------------------------------------------------------------


def test_load_and_rows(make_sampler: MakeSampler):
    sampler = make_sampler(most_rows=4, prefill_tokens=64)
    assert (sampler.load, sampler.rows, sampler.cache_use) == (0, 0, 0.0)
    ticket = sampler.submit(make_request(random_prompt(1, 100), 5, num_samples=6))
    assert (sampler.load, sampler.rows) == (6, 0)
    sampler.step()  # 64 of the prompt's tokens
    assert (sampler.load, sampler.rows) == (6, 0)
    sampler.step()
    assert (sampler.load, sampler.rows) == (6, 4)
    assert sampler.cache_use == (100 + 4 * 32) / 16_384
    finish(sampler, ticket)
    assert (sampler.load, sampler.rows, sampler.cache_use) == (0, 0, 0.0)
    assert sampler.cache.prefixes.tokens == 100  # kept for the next request, and free for any other


def test_counters(make_sampler: MakeSampler):
    sampler = make_sampler()
    finish(sampler, sampler.submit(make_request(PROMPT, 5, num_samples=3)))
    assert (sampler.prompt_tokens, sampler.sampled_tokens) == (20, 15)
    assert (sampler.steps, sampler.row_steps) == (4, 12)  # the first tokens come from the prefill
    finish(sampler, sampler.submit(make_request(PROMPT, 1)))
    assert (sampler.prompt_tokens, sampler.sampled_tokens) == (20, 16)  # all was in the cache
    assert (sampler.steps, sampler.row_steps) == (4, 12)
