"""Behaviours 43 to 46 and what surrounds them, with the tiny model's own renderer."""

import asyncio

import pytest
import tinker

from tests.tinker_cookbook.rl.tiny import END, MODEL, chatml, text_of, tokens_of
from tinker_cookbook.renderers import Message, get_renderer
from tinker_cookbook.rl import message_env
from tinker_cookbook.rl.message_env import EnvFromMessageEnv, MessageEnv, MessageStepResult
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, RolloutLimits
from tinker_cookbook.rl.types import InitialObservationOverflow
from tinker_cookbook.tokenizer_utils import get_tokenizer


def user(text: str) -> Message:
    return Message(role="user", content=text)


class Echo(MessageEnv):
    """Says what it heard, and rewards the turn's number; the third turn is the last."""

    example_id = "echo-7"

    def __init__(self, turns: int = 3):
        self.turns = turns
        self.heard: list[Message] = []
        self.conversation = [user("Hello.")]

    async def initial_observation(self):
        return self.conversation

    async def step(self, message):
        self.heard.append(message)
        self.conversation = [*self.conversation, message, user(f"You said {message['content']}")]
        count = len(self.heard)
        return MessageStepResult(
            float(count), count == self.turns, self.conversation, {"turn": count}, {"said": "yes"}
        )


class Patient(Echo):
    async def observe_truncated_response(self, message):
        self.conversation = [*self.conversation, message, user("Go on.")]
        return self.conversation

    async def add_messages(self, messages):
        self.conversation = [*self.conversation, *messages]
        return self.conversation


def begun(inner: MessageEnv, **options) -> EnvFromMessageEnv:
    env = EnvFromMessageEnv(chatml(), inner, **options)
    first = asyncio.run(env.initial_observation())
    assert isinstance(first, tuple)
    return env


def step(env: EnvFromMessageEnv, text: str, stop_reason: tinker.StopReason = "stop"):
    return asyncio.run(env.step(tokens_of(text), extra={"stop_reason": stop_reason}))


def test_a_message_goes_to_the_env_and_its_answer_is_the_next_prompt():
    env = begun(inner := Echo())
    result = step(env, f"Hi{END}")
    assert inner.heard == [{"role": "assistant", "content": "Hi"}]
    assert (result.reward, result.episode_done) == (1.0, False)
    assert (result.metrics, result.logs) == ({"turn": 1}, {"said": "yes"})
    assert result.next_observation.to_ints() == chatml().build_generation_prompt(inner.conversation).to_ints()
    assert result.next_stop_condition == chatml().get_stop_sequences()
    assert env.example_id == "echo-7"


def test_a_stop_condition_of_the_env_is_for_one_turn():
    class Short(Echo):
        async def step(self, message):
            result = await super().step(message)
            result.next_stop_condition = ["."] if len(self.heard) == 1 else None
            return result

    env = begun(Short())
    assert step(env, f"Hi{END}").next_stop_condition == ["."]
    assert step(env, f"Hi{END}").next_stop_condition == chatml().get_stop_sequences()


def test_prompts_are_rendered_in_a_thread(monkeypatch):
    threaded = []

    async def to_thread(function, *arguments):
        threaded.append(function)
        return function(*arguments)

    monkeypatch.setattr(message_env.asyncio, "to_thread", to_thread)
    step(begun(Echo()), f"Hi{END}")
    assert threaded == [chatml().build_generation_prompt] * 2


def test_an_end_of_text_is_graded():
    """Behaviour 43: only what is malformed is not."""
    renderer = get_renderer("role_colon", get_tokenizer(MODEL), model_name=MODEL)
    env = EnvFromMessageEnv(renderer, inner := Echo(turns=1))
    asyncio.run(env.initial_observation())
    result = step(env, f" Hi{END}")  # which is this tokenizer's end of text, and not this renderer's stop
    assert result.reward == 1.0
    assert [message["content"] for message in inner.heard] == ["Hi"]


def test_a_malformed_answer_ends_the_episode_unheard():
    env = begun(inner := Echo())
    result = step(env, "Hi")
    assert (result.reward, result.episode_done) == (-1.0, True)
    assert result.metrics == {"parse_error": 1.0, "stop/parse_error": 1.0}
    assert result.logs == {}
    assert inner.heard == []


def test_after_a_malformed_answer_that_ends_nothing_the_last_prompt_is_asked_again():
    """Behaviour 46."""
    env = begun(inner := Echo(), terminate_on_parse_error=False, failed_parse_reward=-0.5)
    before = step(env, f"Hi{END}").next_observation
    result = step(env, "no end")
    assert (result.reward, result.episode_done) == (-0.5, False)
    assert result.metrics == {"parse_error": 1.0}
    assert result.next_observation == before
    assert len(inner.heard) == 1
    assert step(env, f"Better{END}").reward == 2.0


def test_a_malformed_first_answer_is_asked_for_again():
    env = begun(Echo(), terminate_on_parse_error=False)
    assert "Hello." in text_of(step(env, "no end").next_observation.to_ints())


@pytest.mark.parametrize("masked", [True, False])
def test_a_policy_for_malformed_answers_sets_the_reward_and_says_what_was_wrong(masked):
    env = begun(Echo(), terminate_on_parse_error=False)
    env.set_parse_error_policy(ParseErrorPolicy(terminal_reward=-0.25, mask_error_turns=masked))
    result = step(env, "Hi")
    assert (result.reward, result.episode_done) == (-0.25, True)
    assert result.metrics["stop/parse_error"] == 1.0
    assert ("parse_error_masked" in result.metrics) == masked
    assert result.logs["parse_failure_kind"] == "structural"
    assert result.logs["parse_failure_detail"]


def test_an_answer_that_was_cut_off_ends_the_episode_unheard():
    """Behaviour 44. It is not even parsed: these tokens would be clean."""
    env = begun(inner := Patient(), context_overflow_reward=-0.3)
    result = step(env, f"Hi{END}", stop_reason="length")
    assert (result.reward, result.episode_done) == (-0.3, True)
    assert result.metrics == {"max_tokens_reached": 1.0, "stop/max_tokens": 1.0}
    assert inner.heard == []


def test_an_env_may_go_on_after_an_answer_that_was_cut_off():
    env = begun(Patient(), terminate_on_length=False)
    result = step(env, "Once upon a", stop_reason="length")
    assert (result.reward, result.episode_done) == (0.0, False)
    assert "truncated_turn" in result.logs
    assert "Once upon a" in (prompt := text_of(result.next_observation.to_ints()))
    assert "Go on." in prompt


def test_an_env_that_cannot_go_on_ends_there():
    result = step(begun(Echo(), terminate_on_length=False), "Once upon a", stop_reason="length")
    assert result.episode_done
    assert result.metrics["stop/max_tokens"] == 1.0


def test_a_conversation_without_room_ends_and_its_reward_is_replaced():
    """Behaviour 45."""
    room = chatml().build_generation_prompt([user("Hello.")]).length + 8
    env = begun(Echo(), max_trajectory_tokens=room, max_generation_tokens=8)
    result = step(env, f"Hi{END}")
    assert (result.reward, result.episode_done) == (-0.1, True)
    assert result.metrics == {"turn": 1, "context_overflow": 1.0, "stop/context_overflow": 1.0}
    assert result.logs == {"said": "yes"}


def test_the_reward_of_a_last_step_stands_whatever_its_length():
    room = chatml().build_generation_prompt([user("Hello.")]).length
    result = step(begun(Echo(turns=1), max_trajectory_tokens=room), f"Hi{END}")
    assert (result.reward, result.episode_done) == (1.0, True)
    assert "context_overflow" not in result.metrics


def test_a_first_observation_without_room_is_said():
    env = EnvFromMessageEnv(chatml(), Echo(), max_trajectory_tokens=4)
    first = asyncio.run(env.initial_observation())
    assert isinstance(first, InitialObservationOverflow)
    assert first.reward == -0.1
    assert first.metrics == {"max_tokens_reached": 1.0, "stop/max_tokens": 1.0}
    assert "too long for the model's context window" in str(first.logs["initial_observation_overflow"])


def test_a_last_step_needs_no_conversation():
    class Done(Echo):
        async def step(self, message):
            return MessageStepResult(1.0, True, [])

    assert step(begun(Done()), f"Hi{END}").next_observation.length == 0


def test_messages_can_be_put_in():
    env = begun(Patient())
    prompt, _ = asyncio.run(env.inject_messages([user("Be quick.")]))
    assert "Be quick." in text_of(prompt.to_ints())
    with pytest.raises(TypeError, match="message injection"):
        asyncio.run(begun(Echo()).inject_messages([user("Be quick.")]))


def test_limits_are_passed_on(caplog):
    class Counting(Echo):
        limit = 0

        def set_max_tool_calls(self, max_tool_calls):
            self.limit = max_tool_calls

    env = begun(inner := Counting(), rollout_limits=RolloutLimits(max_turns=2))
    env.set_max_tool_calls(3)
    assert inner.limit == 3
    assert env.rollout_limits == RolloutLimits(max_turns=2)
    begun(Echo()).set_max_tool_calls(3)
    assert "set_max_tool_calls" in caplog.text
