"""Policies: from a prompt to tokens, from a conversation to a message."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

import tinker

from tinker_cookbook.exceptions import ConfigurationError, TrainingError
from tinker_cookbook.renderers.messages import Message, ParseTermination
from tinker_cookbook.utils.seeds import derive_seed

if TYPE_CHECKING:
    from tinker_cookbook.renderers import Renderer

__all__ = [
    "ContextWindowExceededError",
    "MessageCompleter",
    "StopCondition",
    "TinkerMessageCompleter",
    "TinkerTokenCompleter",
    "TokenCompleter",
    "TokensWithLogprobs",
]

StopCondition: TypeAlias = list[str] | list[int]
"""Strings, or tokens, at any of which sampling ends."""


class ContextWindowExceededError(ConfigurationError):
    """A prompt that leaves no room for a completion. A rollout ends there; elsewhere it is an error."""


@dataclass
class TokensWithLogprobs:
    """Tokens, the logprob of each when it was sampled, and why sampling ended."""

    tokens: list[int]
    maybe_logprobs: list[float] | None
    stop_reason: tinker.StopReason = "stop"

    @property
    def logprobs(self) -> list[float]:
        if self.maybe_logprobs is None:
            raise ValueError(
                "these tokens have no logprobs: they were not sampled, or logprobs were not asked for"
            )
        return self.maybe_logprobs


class TokenCompleter:
    """Continues tokens. What RL trains."""

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        """`max_tokens` can only lower the completer's own limit."""
        raise NotImplementedError

    def for_rollout(self, index: int) -> "TokenCompleter":
        """The policy of episode `index` of a group. Itself, unless its calls are numbered, as seeds need."""
        return self


class MessageCompleter:
    """Answers a conversation. What judges, players and evaluators use."""

    async def __call__(self, messages: list[Message]) -> Message:
        raise NotImplementedError


@dataclass
class TinkerTokenCompleter(TokenCompleter):
    """Continues tokens with a sampling client: the policy of RL."""

    sampling_client: tinker.SamplingClient
    max_tokens: int  # of each completion
    temperature: float = 1.0
    context_window: int | None = None  # of prompt and completion together
    # With a seed, each call samples with one of its own, made of this one and the number of the call.
    seed: int | None = None
    _calls: int = field(default=0, init=False, repr=False, compare=False)

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        (sampled,) = await self.sample(model_input, stop, max_tokens=max_tokens, seed=self._next_seed())
        return sampled

    async def sample(
        self,
        model_input: tinker.ModelInput,
        stop: StopCondition,
        *,
        count: int = 1,
        max_tokens: int | None = None,
        seed: int | None = None,
    ) -> list[TokensWithLogprobs]:
        """Several continuations of one prompt, in one request."""
        limit = self.max_tokens if max_tokens is None else min(self.max_tokens, max_tokens)
        params = tinker.SamplingParams(
            stop=stop,
            max_tokens=self._within_window(limit, model_input.length),
            temperature=self.temperature,
            seed=seed,
        )
        response = await self.sampling_client.sample_async(
            prompt=model_input, num_samples=count, sampling_params=params
        )
        if len(response.sequences) != count:
            raise TrainingError(
                f"the server sampled {len(response.sequences)} sequences where {count} were asked for"
            )
        return [_with_logprobs(sequence) for sequence in response.sequences]

    def for_rollout(self, index: int) -> "TinkerTokenCompleter":
        """With a seed, a completer of its own: what other episodes sample meanwhile does not change its seeds."""
        return self if self.seed is None else replace(self, seed=derive_seed(self.seed, index, bits=63))

    def _next_seed(self) -> int | None:
        if self.seed is None:
            return None
        call, self._calls = self._calls, self._calls + 1
        return derive_seed(self.seed, call)

    def _within_window(self, limit: int, prompt_length: int) -> int:
        if limit <= 0:
            raise ConfigurationError(f"max_tokens must be at least 1, got {limit}")
        if self.context_window is None:
            return limit
        room = self.context_window - prompt_length
        if room <= 0:
            raise ContextWindowExceededError(
                f"a prompt of {prompt_length} tokens fills or exceeds context window {self.context_window}: shorten "
                "the conversation or raise context_window"
            )
        return min(limit, room)


def _with_logprobs(sequence: tinker.SampledSequence) -> TokensWithLogprobs:
    if sequence.logprobs is None:
        raise TrainingError("the server sampled without logprobs, and without them nothing can be trained")
    return TokensWithLogprobs(sequence.tokens, sequence.logprobs, sequence.stop_reason)


class TinkerMessageCompleter(MessageCompleter):
    """Answers with what a sampling client samples, through a renderer."""

    def __init__(
        self,
        sampling_client: tinker.SamplingClient,
        renderer: "Renderer",
        max_tokens: int,
        stop_condition: StopCondition | None = None,
        temperature: float = 1.0,
    ):
        """Without a `stop_condition`, a message ends where the renderer says."""
        self.sampling_client = sampling_client
        self.renderer = renderer
        self.max_tokens = max_tokens
        self.stop_condition: StopCondition = stop_condition or renderer.get_stop_sequences()
        self.temperature = temperature

    async def __call__(self, messages: list[Message]) -> Message:
        message, _ = await self.complete(messages)
        return message

    async def complete(self, messages: list[Message]) -> tuple[Message, ParseTermination]:
        """The answer and how it ended: one that was cut off is MALFORMED and holds what there is of it."""
        params = tinker.SamplingParams(
            stop=self.stop_condition, max_tokens=self.max_tokens, temperature=self.temperature
        )
        response = await self.sampling_client.sample_async(
            prompt=self.renderer.build_generation_prompt(messages), num_samples=1, sampling_params=params
        )
        parsed, termination = self.renderer.parse_response(response.sequences[0].tokens)
        message = Message(role="assistant", content=parsed["content"])
        if tool_calls := parsed.get("tool_calls"):
            message["tool_calls"] = tool_calls
        if unparsed := parsed.get("unparsed_tool_calls"):
            message["unparsed_tool_calls"] = unparsed
        return message, termination
