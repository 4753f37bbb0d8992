"""With a seed, or none needed, tokens and logprobs are the same to the bit, however requests arrive."""

import random
from collections.abc import Sequence

import pytest

from tests.tinker_engine.sampling.conftest import MakeSampler
from tests.tinker_engine.sampling.support import adapter_of, finish, make_request, random_prompt
from tinker_engine.sampling.request import Ticket
from tinker_engine.sampling.sampler import Sampler
from tinker_engine.sampling.types import SampleRequest, SampleResult

# With three query heads to a key head, and with one.
FAMILIES = ["mistral", "llama-multi-head"]
COMMON = random_prompt(0, 150)


def requests_of(family: str) -> list[SampleRequest]:
    """Short and long, equal, beginning alike, alone and in groups, under two adapters and none."""
    one, two = adapter_of(family, 1), adapter_of(family, 2)
    prompts = [[7], [7, 8], random_prompt(1, 63), random_prompt(2, 65), COMMON, COMMON[:101], COMMON[:100]]
    alone = [
        make_request(prompt, 10, seed, adapter=adapter)
        for seed, (prompt, adapter) in enumerate((p, a) for p in prompts for a in (one, two))
    ]
    return [
        *alone,
        make_request(COMMON, 12, 20, adapter=one),
        make_request(COMMON, 12, 21, adapter=one, num_samples=5),
        make_request(COMMON[:70], 10, 22, adapter=one, num_samples=2, temperature=0.7, top_k=20),
        make_request([*COMMON, 1, 2, 3], 12, 23, num_samples=2, prompt_logprobs=True),
        make_request(random_prompt(3, 210), 20, 24, adapter=two, topk_sample_logprobs=2),
        make_request(random_prompt(4, 300), 10, None, adapter=two, temperature=0),
    ]


@pytest.fixture(scope="module", params=FAMILIES)
def wanted(request: pytest.FixtureRequest, make_sampler: MakeSampler) -> tuple[str, list[SampleResult]]:
    """The family, and what each of its requests gives with nothing else going on."""
    family = request.param
    return family, [make_sampler(family).sample([each])[0] for each in requests_of(family)]


def check(found: Sequence[SampleResult], wanted: Sequence[SampleResult]) -> None:
    for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert one.sequences == other.sequences, f"request {i}"
        assert one.prompt_logprobs == other.prompt_logprobs, f"request {i}"


def test_at_once_and_again_with_the_prompts_in_the_cache(
    wanted: tuple[str, list[SampleResult]], make_sampler: MakeSampler
):
    family, alone = wanted
    sampler = make_sampler(family)
    for _ in range(2):
        check(sampler.sample(requests_of(family)), alone)


@pytest.mark.parametrize(
    "limits",
    [{}, {"most_rows": 5}, {"prefill_tokens": 64}, {"prefill_tokens": 23}],
    ids=["ample", "few rows", "prompts in pieces", "in odd pieces"],
)
def test_in_any_order_and_at_any_time(
    limits: dict[str, int], wanted: tuple[str, list[SampleResult]], make_sampler: MakeSampler
):
    family, alone = wanted
    requests, rng = requests_of(family), random.Random(len(limits))
    sampler = make_sampler(family, **limits)
    order = rng.sample(range(len(requests)), len(requests))
    tickets: dict[int, Ticket] = {}
    while order:
        for i in [order.pop() for _ in range(min(len(order), rng.choice([0, 1, 1, 2, 7])))]:
            tickets[i] = sampler.submit(requests[i])
        disturb(sampler, family, rng)
        sampler.step()
    finish(sampler, *tickets.values())
    check([tickets[i].result for i in range(len(requests))], alone)


def disturb(sampler: Sampler, family: str, rng: random.Random) -> None:
    """With requests without a seed that begin like the others."""
    if rng.random() < 0.3:
        adapter = rng.choice([None, adapter_of(family, 1)])
        prompt = COMMON[: rng.randrange(1, 150)]
        sampler.submit(
            make_request(
                prompt, rng.randrange(1, 9), seed=None, adapter=adapter, num_samples=rng.choice([1, 3])
            )
        )
