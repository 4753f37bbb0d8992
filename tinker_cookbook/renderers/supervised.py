"""Which tokens of a conversation are learned."""

from collections.abc import Sequence

from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers.messages import Message, TrainOnWhat


def last_user_index(messages: Sequence[Message]) -> int:
    return max((i for i, message in enumerate(messages) if message["role"] == "user"), default=-1)


def check_trainable(messages: Sequence[Message], what: TrainOnWhat) -> None:
    """`trainable` is for CUSTOMIZED alone, and there every message must say it."""
    if what is TrainOnWhat.CUSTOMIZED:
        missing = [i for i, message in enumerate(messages) if "trainable" not in message]
        if missing:
            raise RendererError(
                f"TrainOnWhat.CUSTOMIZED needs `trainable` in every message; none in {missing}"
            )
    elif any("trainable" in message for message in messages):
        raise RendererError(
            f"messages carry `trainable`, which only TrainOnWhat.CUSTOMIZED reads; this is {what}"
        )


def output_is_trained(messages: Sequence[Message], i: int, what: TrainOnWhat) -> bool:
    message = messages[i]
    assistant = message["role"] == "assistant"
    match what:
        case TrainOnWhat.LAST_ASSISTANT_MESSAGE:
            return assistant and i == len(messages) - 1
        case TrainOnWhat.LAST_ASSISTANT_TURN:
            return assistant and i > last_user_index(messages)
        case TrainOnWhat.ALL_ASSISTANT_MESSAGES:
            return assistant
        case TrainOnWhat.ALL_MESSAGES | TrainOnWhat.ALL_TOKENS:
            return True
        case TrainOnWhat.ALL_USER_AND_SYSTEM_MESSAGES:
            return message["role"] in ("user", "system")
        case TrainOnWhat.CUSTOMIZED:
            return message.get("trainable", False)


def trains_on_the_past(messages: Sequence[Message], what: TrainOnWhat) -> bool:
    """Whether an answer is learned that others follow, as it is shown in the past and not as it was sampled."""
    if what is TrainOnWhat.LAST_ASSISTANT_TURN:
        return sum(output_is_trained(messages, i, what) for i in range(len(messages))) > 1
    return what is TrainOnWhat.ALL_ASSISTANT_MESSAGES


SPLITTABLE = (
    TrainOnWhat.LAST_ASSISTANT_MESSAGE,
    TrainOnWhat.LAST_ASSISTANT_TURN,
    TrainOnWhat.ALL_ASSISTANT_MESSAGES,
)
"""Modes whose trained messages can each become an example that ends with them."""


def first_produced_index(messages: Sequence[Message], what: TrainOnWhat) -> int | None:
    """Where sampling would have begun, for the modes that train on one turn; everything before it was the prompt."""
    if what not in (TrainOnWhat.LAST_ASSISTANT_MESSAGE, TrainOnWhat.LAST_ASSISTANT_TURN):
        return None
    return next((i for i in range(len(messages)) if output_is_trained(messages, i, what)), None)
