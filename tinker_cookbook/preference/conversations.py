"""Prompts and answers of preference data, in the shapes people store them in, as messages."""

import json
import re

from tinker_cookbook.exceptions import DataFormatError
from tinker_cookbook.renderers.messages import Message, get_text_content
from tinker_cookbook.supervised.rows.chat import messages_from_json
from tinker_cookbook.supervised.rows.source import Row

Messages = list[Message]

PROMPTS = ("prompt", "instruction", "question")
HISTORIES = ("messages", "conversations", "conversation")

# Turns begin a paragraph, so that a text may speak of a "Human:"; the first may stand at the very start.
_TURN = re.compile(r"(?:\A\s*|\n\n)(Human|Assistant):")
_ROLES = {"Human": "user", "Assistant": "assistant"}


def transcript(text: str) -> Messages | None:
    """The messages of "\\n\\nHuman: ...\\n\\nAssistant: ..."; None for a text that is no such thing.

    An assistant's turn that is still to be written, at the end, is left off.
    """
    _, *pieces = _TURN.split(text)
    if not pieces or not _TURN.match(text):
        return None
    turns = [
        Message(role=_ROLES[who], content=said.strip())
        for who, said in zip(pieces[::2], pieces[1::2], strict=True)
    ]
    is_open = turns[-1]["role"] == "assistant" and not turns[-1]["content"]
    return turns[:-1] if is_open else turns


def whole_conversation(value: object, name: str) -> Messages | None:
    """The messages, if `value` is a conversation from its beginning; None if it is an answer alone."""
    if isinstance(value, str) and not _is_json_list(value):
        messages = transcript(value)
    else:
        messages = None if isinstance(value, dict) else messages_from_json(value, name)
    return messages if messages and messages[0]["role"] != "assistant" else None


def shared_prompt(chosen: Messages, rejected: Messages) -> tuple[Messages, Messages, Messages]:
    """What both conversations begin with, and how each goes on."""
    shared = 0
    while shared < min(len(chosen), len(rejected)) and chosen[shared] == rejected[shared]:
        shared += 1
    if shared == len(chosen) == len(rejected):
        raise DataFormatError("'chosen' and 'rejected' are the same")
    better, worse = chosen[shared:], rejected[shared:]
    if not better or not worse:
        raise DataFormatError(f"{'rejected' if better else 'chosen'!r} has no answer at its end")
    for name, rest in (("chosen", better), ("rejected", worse)):
        if not shared or any(message["role"] not in ("assistant", "tool") for message in rest):
            raise DataFormatError(
                "'chosen' and 'rejected' differ before the last answer: they do not answer the same prompt"
            )
        _check_answer(rest, name)
    return chosen[:shared], better, worse


def as_completion(value: object, name: str) -> Messages:
    """An answer alone: text, a message or several."""
    if isinstance(value, str) and not _is_json_list(value):
        messages = [Message(role="assistant", content=value)]
    else:
        messages = messages_from_json([value] if isinstance(value, dict) else value, name)
    _check_answer(messages, name)
    return messages


def _check_answer(messages: Messages, name: str) -> None:
    if wrong := [message["role"] for message in messages if message["role"] not in ("assistant", "tool")]:
        raise DataFormatError(f"{name!r} must be an answer of the assistant, and has a message of {wrong[0]}")
    last = messages[-1]
    if last["role"] != "assistant":
        raise DataFormatError(f"{name!r} must end with a message of the assistant")
    if not get_text_content(last).strip() and not last.get("tool_calls"):
        raise DataFormatError(f"{name!r} is empty")


def prompt_of(row: Row, *, within: Messages | None = None, is_whole: bool = False) -> Messages:
    """What is answered. `within`: it was found in the answers; `is_whole`: the answer is the last message of it."""
    prompt = _asked(row) if within is None else within
    system = row.get("system")
    if isinstance(system, str) and system.strip() and prompt[0]["role"] != "system":
        prompt = [Message(role="system", content=system), *prompt]
    if not is_whole and prompt[-1]["role"] == "assistant":
        raise DataFormatError("the prompt ends with an answer: its last message must not be the assistant's")
    return prompt


def _asked(row: Row) -> Messages:
    """`input` belongs to the question, as in the files of Alpaca."""
    history = next((name for name in HISTORIES if row.get(name)), None)
    if history is not None:
        return messages_from_json(row[history], history)
    column = next((name for name in PROMPTS if row.get(name) is not None), None)
    if column is None:
        raise DataFormatError(f"no prompt: there is none of {', '.join((*PROMPTS, *HISTORIES))}")
    value = row[column]
    if not isinstance(value, str) or _is_json_list(value):
        return messages_from_json([value] if isinstance(value, dict) else value, column)
    if turns := transcript(value):
        return turns
    extra = row.get("input")
    text = f"{value}\n\n{extra}" if isinstance(extra, str) and extra.strip() else value
    if not text.strip():
        raise DataFormatError(f"{column!r} is empty")
    return [Message(role="user", content=text)]


def _is_json_list(text: str) -> bool:
    """As a cell of a CSV file has messages."""
    if not text.lstrip().startswith("[{"):
        return False
    try:
        return isinstance(json.loads(text), list)
    except ValueError:
        return False
