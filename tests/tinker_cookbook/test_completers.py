"""Policies against the real engine with the tiny model; the arithmetic of limits against a client that only listens."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import tinker

from tests.server import running_server
from tinker_cookbook.completers import (
    ContextWindowExceededError,
    MessageCompleter,
    TinkerMessageCompleter,
    TinkerTokenCompleter,
    TokenCompleter,
    TokensWithLogprobs,
)
from tinker_cookbook.renderers.messages import Message, ParseTermination, ToolCall, UnparsedToolCall
from tinker_cookbook.tokenizer_utils import get_tokenizer

MODEL = "tinker-engine/tiny-chat"
END = "<|im_end|>"


class ChatML:
    """As much of a renderer as a completer needs."""

    def __init__(self):
        self.tokenizer = get_tokenizer(MODEL)
        self.end: int = self.tokenizer.convert_tokens_to_ids(END)

    def build_generation_prompt(self, messages: list[Message]) -> tinker.ModelInput:
        turns = "".join(f"<|im_start|>{message['role']}\n{message['content']}{END}\n" for message in messages)
        return tinker.ModelInput.from_ints(self.tokenizer.encode(f"{turns}<|im_start|>assistant\n"))

    def get_stop_sequences(self) -> list[int]:
        return [self.end]

    def parse_response(self, response: list[int]) -> tuple[Message, ParseTermination]:
        ended = response[-1] == self.end
        text = self.tokenizer.decode(response[:-1] if ended else response)
        termination = ParseTermination.STOP_SEQUENCE if ended else ParseTermination.MALFORMED
        return Message(role="assistant", content=text), termination


class Listener:
    """A sampling client that keeps what it was asked."""

    def __init__(self, logprobs: list[float] | None = None):
        self.asked: list[dict[str, Any]] = []
        self.logprobs = logprobs

    async def sample_async(self, **asked: Any) -> Any:
        self.asked.append(asked)
        sequence = SimpleNamespace(tokens=[7], logprobs=self.logprobs, stop_reason="length")
        return SimpleNamespace(sequences=[sequence] * asked.get("num_samples", 1))


@pytest.fixture(scope="module")
def sampler(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("server")) as server:
        service = tinker.ServiceClient(base_url=server.url, api_key=server.key)
        yield service.create_sampling_client(base_model=MODEL)


# --- with the engine --------------------------------------------------------------------------------------


def test_tokens_come_with_the_logprobs_the_model_gives_them(sampler):
    prompt = ChatML().build_generation_prompt([Message(role="user", content="What is 2 plus 3?")])
    policy = TinkerTokenCompleter(sampler, max_tokens=8)
    answer = asyncio.run(policy(prompt, [ChatML().end]))
    assert 1 <= len(answer.tokens) <= 8
    scored = sampler.compute_logprobs(
        tinker.ModelInput.from_ints([*prompt.to_ints(), *answer.tokens])
    ).result()
    assert answer.logprobs == pytest.approx(scored[-len(answer.tokens) :], abs=1e-3)


def test_a_call_can_lower_the_limit_and_is_told_that_it_was_reached(sampler):
    prompt = ChatML().build_generation_prompt([Message(role="user", content="Tell me a story.")])
    policy = TinkerTokenCompleter(sampler, max_tokens=8)
    answer = asyncio.run(policy(prompt, [ChatML().end], max_tokens=1))
    assert len(answer.tokens) == 1
    assert answer.tokens == [ChatML().end] or answer.stop_reason == "length"


def test_a_message_is_answered(sampler):
    completer = TinkerMessageCompleter(sampler, ChatML(), max_tokens=64, temperature=0.0)  # pyright: ignore[reportArgumentType]
    question = [Message(role="user", content="What is 2 plus 3?")]
    message, termination = asyncio.run(completer.complete(question))
    assert termination is ParseTermination.STOP_SEQUENCE
    assert message["role"] == "assistant"
    assert message["content"]
    assert END not in message["content"]
    assert asyncio.run(completer(question)) == message, "greedy sampling says the same again"


def test_a_message_that_was_cut_off_says_so(sampler):
    completer = TinkerMessageCompleter(sampler, ChatML(), max_tokens=1)  # pyright: ignore[reportArgumentType]
    message, termination = asyncio.run(completer.complete([Message(role="user", content="Tell me a story.")]))
    assert termination is ParseTermination.MALFORMED or message["content"] == ""


# --- limits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "per_call", "window", "expected"),
    [
        (10, None, None, 10),
        (10, 3, None, 3),
        (10, 30, None, 10),
        (10, None, 8, 4),
        (10, 2, 8, 2),
        (10, None, 5, 1),
    ],
)
def test_the_smallest_limit_holds(own, per_call, window, expected):
    client = Listener(logprobs=[-1.0])
    policy = TinkerTokenCompleter(client, own, 0.5, window)  # pyright: ignore[reportArgumentType]
    answer = asyncio.run(policy(tinker.ModelInput.from_ints([1, 2, 3, 4]), ["."], max_tokens=per_call))
    assert answer == TokensWithLogprobs([7], [-1.0], "length")
    (asked,) = client.asked
    assert asked["num_samples"] == 1
    assert asked["sampling_params"] == tinker.SamplingParams(stop=["."], max_tokens=expected, temperature=0.5)


@pytest.mark.parametrize(
    ("window", "per_call", "words"), [(4, None, "exceeds context window"), (None, 0, "at least 1")]
)
def test_a_completion_of_no_tokens_is_refused(window, per_call, words):
    client = Listener()
    policy = TinkerTokenCompleter(client, 10, context_window=window)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=words):
        asyncio.run(policy(tinker.ModelInput.from_ints([1, 2, 3, 4]), [], max_tokens=per_call))
    assert not client.asked


def test_no_room_in_the_context_is_an_error_of_its_own():
    policy = TinkerTokenCompleter(Listener(), 10, context_window=1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ContextWindowExceededError, match="exceeds context window"):
        asyncio.run(policy(tinker.ModelInput.from_ints([1]), []))


# --- seeds ------------------------------------------------------------------------------------------------


def seeds_of(policy: TinkerTokenCompleter, calls: int) -> list[int | None]:
    client = Listener(logprobs=[-1.0])
    policy.sampling_client = client  # pyright: ignore[reportAttributeAccessIssue]
    for _ in range(calls):
        asyncio.run(policy(tinker.ModelInput.from_ints([1]), []))
    return [asked["sampling_params"].seed for asked in client.asked]


def test_each_call_of_each_rollout_has_a_seed_of_its_own_and_the_same_in_every_run():
    policy = TinkerTokenCompleter(Listener(), 10, seed=5)  # pyright: ignore[reportArgumentType]
    first = [seeds_of(policy.for_rollout(index), 2) for index in range(3)]
    again = [seeds_of(policy.for_rollout(index), 2) for index in range(3)]
    assert first == again
    assert first[0] == [1733026341, 711712898], "another process, another day"
    seeds = [seed for pair in first for seed in pair if seed is not None]
    assert len(set(seeds)) == 6
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_without_a_seed_none_is_sent():
    policy = TinkerTokenCompleter(Listener(), 10)  # pyright: ignore[reportArgumentType]
    assert policy.for_rollout(3) is policy
    assert seeds_of(policy, 2) == [None, None]
    assert TokenCompleter.for_rollout(policy, 1) is policy


def test_samples_without_logprobs_are_not_passed_on():
    policy = TinkerTokenCompleter(Listener(), 10)  # pyright: ignore[reportArgumentType]
    with pytest.raises(RuntimeError, match="without logprobs"):
        asyncio.run(policy(tinker.ModelInput.from_ints([1]), []))


def test_tokens_that_were_not_sampled_have_no_logprobs():
    with pytest.raises(ValueError, match="no logprobs"):
        _ = TokensWithLogprobs([1], None).logprobs


# --- messages ---------------------------------------------------------------------------------------------


def test_tool_calls_are_kept_and_so_are_those_that_cannot_be_read():
    call = ToolCall(function=ToolCall.FunctionBody(name="look", arguments="{}"))
    unparsed = UnparsedToolCall(raw_text="<tool_call>", error="unterminated")
    parsed = Message(role="tool", content="hm", tool_calls=[call], unparsed_tool_calls=[unparsed], name="x")
    renderer = ChatML()
    renderer.parse_response = lambda response: (parsed, ParseTermination.EOS)
    completer = TinkerMessageCompleter(Listener(), renderer, 5, stop_condition=["###"])  # pyright: ignore[reportArgumentType]
    message = asyncio.run(completer([Message(role="user", content="?")]))
    assert message == Message(
        role="assistant", content="hm", tool_calls=[call], unparsed_tool_calls=[unparsed]
    )
    assert completer.sampling_client.asked[0]["sampling_params"].stop == ["###"]  # pyright: ignore[reportAttributeAccessIssue]


def test_the_parents_do_nothing_by_themselves():
    with pytest.raises(NotImplementedError):
        asyncio.run(TokenCompleter()(tinker.ModelInput.empty(), []))
    with pytest.raises(NotImplementedError):
        asyncio.run(MessageCompleter()([]))
