"""Environments that speak in messages, over any renderer: from messages to tokens and back is done here."""

import asyncio
import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import tinker

from tinker_cookbook.completers import StopCondition
from tinker_cookbook.renderers import Message, Renderer
from tinker_cookbook.renderers.messages import ParseTermination, classify_parse_failure
from tinker_cookbook.rl import types
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, RolloutLimits
from tinker_cookbook.rl.types import PARSE_ERROR_MASKED_METRIC_KEY, STOP_METRIC_PREFIX, StopReason

logger = logging.getLogger(__name__)


@dataclass
class MessageStepResult:
    """What an environment makes of a message."""

    reward: float
    episode_done: bool
    next_messages: list[Message]  # the whole conversation, to which the next message is the answer
    metrics: dict[str, float] = field(default_factory=dict)
    logs: types.Logs = field(default_factory=dict)
    next_stop_condition: StopCondition | None = None  # None: that of the renderer


class MessageEnv(ABC):
    """One episode in messages; not used again."""

    @abstractmethod
    async def initial_observation(self) -> list[Message]:
        """The conversation that the first answer is an answer to."""

    @abstractmethod
    async def step(self, message: Message) -> MessageStepResult:
        """What an answer was worth, and the conversation to answer next."""

    async def observe_truncated_response(self, message: Message) -> list[Message] | None:
        """The conversation to go on with after an answer that was cut off; None: the episode ends there."""
        return None

    async def add_messages(self, messages: list[Message]) -> list[Message] | None:
        """The conversation with these put in; None: nothing can be put in."""
        return None


class EnvFromMessageEnv(types.Env):
    """A `MessageEnv` as the environment that is trained on.

    An answer that did not end as it must ends the episode with `failed_parse_reward`. Without
    `terminate_on_parse_error` the same prompt is asked again instead; let `rollout_limits` or the caller bound how
    often. An answer that was cut off by its limit of tokens, or a conversation that leaves no room within
    `max_trajectory_tokens` for `max_generation_tokens` more, ends with `context_overflow_reward`.
    """

    def __init__(
        self,
        renderer: Renderer,
        message_env: MessageEnv,
        failed_parse_reward: float = -1.0,
        terminate_on_parse_error: bool = True,
        max_trajectory_tokens: int | None = None,
        max_generation_tokens: int | None = None,
        context_overflow_reward: float = -0.1,
        terminate_on_length: bool = True,
        parse_error_policy: ParseErrorPolicy | None = None,
        rollout_limits: RolloutLimits | None = None,
    ):
        self.renderer = renderer
        self.message_env = message_env
        self.failed_parse_reward = failed_parse_reward
        self.terminate_on_parse_error = terminate_on_parse_error
        self.max_trajectory_tokens = max_trajectory_tokens
        self.max_generation_tokens = max_generation_tokens
        self.context_overflow_reward = context_overflow_reward
        self.terminate_on_length = terminate_on_length
        self.parse_error_policy = parse_error_policy
        self.rollout_limits = rollout_limits  # `run_rollout` looks for it
        self.example_id = getattr(message_env, "example_id", None)
        self._renderer_stop: StopCondition = renderer.get_stop_sequences()
        self._prompt = tinker.ModelInput.empty()  # what the next action is an answer to
        self._stop = self._renderer_stop

    async def initial_observation(
        self,
    ) -> tuple[tinker.ModelInput, StopCondition] | types.InitialObservationOverflow:
        prompt = await self._render(await self.message_env.initial_observation())
        if self._overflows(prompt):
            return types.InitialObservationOverflow(
                self.context_overflow_reward,
                metrics=_max_tokens_metrics(),
                logs={
                    "initial_observation_overflow": f"a first observation of {prompt.length} tokens is too long for "
                    f"the model's context window ({self.max_trajectory_tokens} with "
                    f"{self.max_generation_tokens or 0} for the answer)"
                },
            )
        return self._asked(prompt)

    async def step(self, action: types.Action, *, extra: types.ActionExtra | None = None) -> types.StepResult:
        if extra is not None and extra.get("stop_reason") == "length":
            return await self._after_truncation(action)
        message, termination = self.renderer.parse_response(action)
        if not termination.is_clean:
            return self._after_failed_parse(message, termination)
        return await self._after_message(message)

    async def _after_message(self, message: Message) -> types.StepResult:
        result = await self.message_env.step(message)
        nothing_follows = result.episode_done and not result.next_messages
        prompt = tinker.ModelInput.empty() if nothing_follows else await self._render(result.next_messages)
        if not result.episode_done and self._overflows(prompt):
            return self._overflowed(result.metrics, result.logs)
        observation, stop = self._asked(prompt, result.next_stop_condition)
        return types.StepResult(
            reward=result.reward,
            episode_done=result.episode_done,
            next_observation=observation,
            next_stop_condition=stop,
            metrics=dict(result.metrics),
            logs=dict(result.logs),
        )

    async def _after_truncation(self, action: types.Action) -> types.StepResult:
        if not self.terminate_on_length:
            message, _ = self.renderer.parse_response(action)
            messages = await self.message_env.observe_truncated_response(message)
            if messages is not None:
                prompt = await self._render(messages)
                if self._overflows(prompt):
                    return self._overflowed({}, {})
                observation, stop = self._asked(prompt)
                logs: types.Logs = {"truncated_turn": f"the answer was cut off after {len(action)} tokens"}
                return types.StepResult(0.0, False, observation, stop, logs=logs)
        return self._ended(self.context_overflow_reward, _max_tokens_metrics())

    def _after_failed_parse(self, message: Message, termination: ParseTermination) -> types.StepResult:
        metrics: types.Metrics = {"parse_error": 1.0}
        if self.parse_error_policy is not None:
            metrics |= _stopped(StopReason.PARSE_ERROR)
            if self.parse_error_policy.mask_error_turns:
                metrics[PARSE_ERROR_MASKED_METRIC_KEY] = 1.0
            failure = classify_parse_failure(message, termination)
            assert failure is not None, "an answer that did not end well is a failure"
            logs: types.Logs = {"parse_failure_kind": failure[0].value, "parse_failure_detail": failure[1]}
            return self._ended(self.parse_error_policy.terminal_reward, metrics, logs)
        if self.terminate_on_parse_error:
            return self._ended(self.failed_parse_reward, metrics | _stopped(StopReason.PARSE_ERROR))
        return types.StepResult(self.failed_parse_reward, False, self._prompt, self._stop, metrics=metrics)

    # --- what a runner may ask for ---------------------------------------------------------------------

    def set_parse_error_policy(self, policy: ParseErrorPolicy) -> None:
        """Also for the message env, if it wants to know: it sees what ended well and holds unreadable calls."""
        self.parse_error_policy = policy
        setter = getattr(self.message_env, "set_parse_error_policy", None)
        if setter is not None:
            setter(policy)

    def set_max_tool_calls(self, max_tool_calls: int) -> None:
        setter = getattr(self.message_env, "set_max_tool_calls", None)
        if setter is None:
            logger.warning(
                "max_tool_calls=%d has no effect: %s has no set_max_tool_calls",
                max_tool_calls,
                type(self.message_env).__name__,
            )
        else:
            setter(max_tool_calls)

    async def inject_messages(self, messages: list[Message]) -> tuple[tinker.ModelInput, StopCondition]:
        """Put messages in before the next answer."""
        conversation = await self.message_env.add_messages(messages)
        if conversation is None:
            raise TypeError(
                f"{type(self.message_env).__name__} does not support message injection; give it an add_messages that "
                "returns the conversation"
            )
        return self._asked(await self._render(conversation), self._stop)

    # --- prompts ---------------------------------------------------------------------------------------

    async def _render(self, messages: list[Message]) -> tinker.ModelInput:
        """In a thread: images and long conversations take a while, and other episodes must not wait for it."""
        return await asyncio.to_thread(self.renderer.build_generation_prompt, messages)

    def _asked(
        self, prompt: tinker.ModelInput, stop: StopCondition | None = None
    ) -> tuple[tinker.ModelInput, StopCondition]:
        self._prompt, self._stop = prompt, self._renderer_stop if stop is None else stop
        return self._prompt, self._stop

    def _overflows(self, prompt: tinker.ModelInput) -> bool:
        if self.max_trajectory_tokens is None:
            return False
        return prompt.length + (self.max_generation_tokens or 0) > self.max_trajectory_tokens

    def _overflowed(self, metrics: types.Metrics, logs: types.Logs) -> types.StepResult:
        """The reward of the step is replaced: it was given for a conversation that cannot go on."""
        stopped = {"context_overflow": 1.0, **_stopped(StopReason.CONTEXT_OVERFLOW)}
        return self._ended(self.context_overflow_reward, metrics | stopped, logs)

    def _ended(
        self, reward: float, metrics: types.Metrics, logs: types.Logs | None = None
    ) -> types.StepResult:
        return types.StepResult(
            reward, True, tinker.ModelInput.empty(), self._renderer_stop, metrics, dict(logs or {})
        )


def _stopped(reason: StopReason) -> dict[str, float]:
    return {f"{STOP_METRIC_PREFIX}{reason.value}": 1.0}


def _max_tokens_metrics() -> types.Metrics:
    return {"max_tokens_reached": 1.0, **_stopped(StopReason.MAX_TOKENS)}
