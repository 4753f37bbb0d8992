"""The first prompts of a group in one request: who asks the same is answered together, and nobody waits for ever."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import tinker

from tinker_cookbook.completers import ContextWindowExceededError, TinkerTokenCompleter, TokenCompleter
from tinker_cookbook.rl import first_turn
from tinker_cookbook.rl.first_turn import episode_is_over, policies_of_group

GUARD_SECONDS = 10


class Client:
    """Answers sample i of a request with token i."""

    def __init__(self, error: Exception | None = None):
        self.asked: list[dict[str, Any]] = []
        self.error = error
        self.gate: asyncio.Event | None = None
        self.cancelled = 0

    async def sample_async(self, **asked: Any) -> Any:
        self.asked.append(asked)
        try:
            if self.gate is not None:
                await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        samples = [
            SimpleNamespace(tokens=[index], logprobs=[-1.0], stop_reason="stop")
            for index in range(asked["num_samples"])
        ]
        return SimpleNamespace(sequences=samples)


def group(client: Any, size: int = 4, seed: int | None = 7, **settings: Any) -> list[TokenCompleter]:
    return policies_of_group(TinkerTokenCompleter(client, 8, seed=seed, **settings), size)


def prompt(*tokens: int) -> tinker.ModelInput:
    return tinker.ModelInput.from_ints(list(tokens))


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, GUARD_SECONDS))


async def ask_all(
    policies: list[TokenCompleter], prompts: list[tinker.ModelInput], order: list[int]
) -> list[int]:
    tasks = {}
    for index in order:
        tasks[index] = asyncio.create_task(policies[index](prompts[index], [0]))
        await asyncio.sleep(0)
    return [(await tasks[index]).tokens[0] for index in range(len(policies))]


def test_the_same_prompt_is_asked_once_and_answers_go_by_member_whoever_came_first():
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        client = Client()
        answers = run(ask_all(group(client), [prompt(1, 2)] * 4, order))
        assert answers == [0, 1, 2, 3]
        assert [asked["num_samples"] for asked in client.asked] == [4]


def test_different_prompts_are_different_requests_with_different_seeds():
    client = Client()
    answers = run(ask_all(group(client), [prompt(1), prompt(2), prompt(1), prompt(2)], [2, 3, 1, 0]))
    assert answers == [0, 0, 1, 1]
    assert [asked["num_samples"] for asked in client.asked] == [2, 2]
    assert len({asked["sampling_params"].seed for asked in client.asked}) == 2


def test_seeds_depend_on_the_seed_and_the_member_alone():
    seeds = []
    for order in ([0, 1, 2, 3], [3, 2, 1, 0]):
        client = Client()
        run(ask_all(group(client), [prompt(1), prompt(2), prompt(3), prompt(4)], order))
        seeds.append({tuple(a["prompt"].to_ints()): a["sampling_params"].seed for a in client.asked})
    assert seeds[0] == seeds[1]
    unseeded = Client()
    run(ask_all(group(unseeded, seed=None), [prompt(1)] * 4, [0, 1, 2, 3]))
    assert unseeded.asked[0]["sampling_params"].seed is None


def test_later_turns_are_asked_alone():
    client = Client()

    async def two_turns() -> None:
        policies = group(client, size=2)
        await ask_all(policies, [prompt(1)] * 2, [0, 1])
        await policies[1](prompt(1, 2), [0])

    run(two_turns())
    assert [asked["num_samples"] for asked in client.asked] == [2, 1]


def test_an_episode_that_ends_without_a_word_is_not_waited_for():
    client = Client()

    async def one_leaves() -> list[int]:
        policies = group(client, size=3)
        tasks = [asyncio.create_task(policies[index](prompt(1), [0])) for index in (0, 2)]
        await asyncio.sleep(0)
        assert not client.asked
        episode_is_over(policies[1])
        return [(await task).tokens[0] for task in tasks]

    assert run(one_leaves()) == [0, 1]


def test_one_that_is_late_is_not_waited_for_long_and_asks_alone(monkeypatch):
    monkeypatch.setattr(first_turn, "PATIENCE_SECONDS", 0.01)
    client = Client()

    async def one_is_late() -> list[int]:
        policies = group(client, size=3)
        first = await asyncio.gather(*(policies[index](prompt(1), [0]) for index in (0, 1)))
        last = await policies[2](prompt(1), [0])
        return [each.tokens[0] for each in [*first, last]]

    assert run(one_is_late()) == [0, 1, 0]
    assert [asked["num_samples"] for asked in client.asked] == [2, 1]


def test_an_error_is_that_of_every_member_who_asked():
    client = Client(error=RuntimeError("the server is gone"))

    async def all_fail() -> list[Any]:
        policies = group(client, size=2)
        return await asyncio.gather(*(each(prompt(1), [0]) for each in policies), return_exceptions=True)

    assert [type(error) for error in run(all_fail())] == [RuntimeError, RuntimeError]


def test_a_prompt_too_long_is_the_error_of_its_own_members():
    client = Client()

    async def one_is_long() -> list[Any]:
        policies = group(client, size=2, context_window=3)
        prompts = [prompt(1, 2, 3, 4), prompt(1)]
        asks = [policy(each, [0]) for policy, each in zip(policies, prompts, strict=True)]
        return await asyncio.gather(*asks, return_exceptions=True)

    long, short = run(one_is_long())
    assert isinstance(long, ContextWindowExceededError)
    assert short.tokens == [0]


@pytest.mark.parametrize("cancelled", [1, 2])
def test_a_request_ends_when_nobody_waits_for_it_any_more(cancelled):
    client = Client()

    async def cancel_some() -> None:
        client.gate = asyncio.Event()
        policies = group(client, size=2)
        tasks = [asyncio.create_task(each(prompt(1), [0])) for each in policies]
        while not client.asked:
            await asyncio.sleep(0)
        for task in tasks[:cancelled]:
            task.cancel()
        await asyncio.wait(tasks[:cancelled])
        client.gate.set()
        for task in tasks[cancelled:]:
            assert (await task).tokens == [1]

    run(cancel_some())
    assert client.cancelled == (cancelled == 2)


def test_other_policies_are_used_as_they_are():
    class Plain(TokenCompleter):
        pass

    plain = Plain()
    assert policies_of_group(plain, 2) == [plain, plain]
    function: Any = lambda *_: None  # noqa: E731
    assert policies_of_group(function, 2) == [function, function]
