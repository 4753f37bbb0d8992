"""Messages as people store them, checked and made ours: the OpenAI form and that of ShareGPT."""

import json
from typing import Any, cast

import pydantic

from tinker_cookbook.exceptions import DataFormatError
from tinker_cookbook.renderers.messages import ContentPart, Message, ToolCall

_SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "function_response": "tool",
}
_PART_KEYS = {"text": "text", "thinking": "thinking", "image": "image", "audio": "audio"}
_KEPT = {"name": str, "tool_call_id": str, "trainable": bool}


def messages_from_json(value: object, column: str) -> list[Message]:
    """DataFormatError, with the reason alone, if `value` is no conversation."""
    if isinstance(value, str):  # in a CSV file, or in a Parquet file with a plain schema
        try:
            value = json.loads(value)
        except ValueError as error:
            raise DataFormatError(f"{column!r} is text and no JSON") from error
    if not isinstance(value, list):
        raise DataFormatError(f"{column!r} must be a list of messages, not {type(value).__name__}")
    if not value:
        raise DataFormatError(f"{column!r} has no messages")
    return [_message(message, f"message {number}") for number, message in enumerate(value, 1)]


def _message(value: object, which: str) -> Message:
    if not isinstance(value, dict):
        raise DataFormatError(f"{which} must be an object, not {type(value).__name__}")
    message = _from_sharegpt(value, which) if "from" in value else _from_openai(value, which)
    for key, kind in _KEPT.items():
        if value.get(key) is not None:
            if not isinstance(value[key], kind):
                raise DataFormatError(f"{which}: {key!r} must be {kind.__name__}, not {value[key]!r}")
            cast(dict[str, Any], message)[key] = value[key]
    return message


def _from_sharegpt(value: dict[str, Any], which: str) -> Message:
    said_by = value["from"]
    if said_by == "function_call":
        return Message(role="assistant", content="", tool_calls=[_sharegpt_call(value.get("value"), which)])
    if said_by not in _SHAREGPT_ROLES:
        raise DataFormatError(
            f"{which} is from {said_by!r}; known are {', '.join(_SHAREGPT_ROLES)}, function_call"
        )
    if not isinstance(value.get("value"), str):
        raise DataFormatError(f"{which} has no text in 'value'")
    return Message(role=_SHAREGPT_ROLES[said_by], content=value["value"])


def _sharegpt_call(value: object, which: str) -> ToolCall:
    """A call is a turn of its own, and its value the JSON of name and arguments."""
    try:
        body = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise DataFormatError(f"{which} is a function_call and no JSON") from error
    return _tool_call({"function": body}, which)


def _from_openai(value: dict[str, Any], which: str) -> Message:
    role = value.get("role")
    if not isinstance(role, str) or not role:
        raise DataFormatError(f"{which} has no role")
    calls = value.get("tool_calls") or []
    content = value.get("content")
    if content is None and not calls:
        raise DataFormatError(f"{which} ({role}) has no content")
    parts = "" if content is None else _content(content, which)
    if thinking := value.get("reasoning_content"):
        before: list[ContentPart] = [{"type": "thinking", "thinking": str(thinking)}]
        parts = [*before, *(_as_parts(parts))]
    message = Message(role=role, content=parts)
    if calls:
        message["tool_calls"] = [_tool_call(call, which) for call in calls]
    return message


def _content(content: object, which: str) -> str | list[ContentPart]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise DataFormatError(f"{which}: its content must be text or a list, not {type(content).__name__}")
    return [_part(part, which) for part in content]


def _part(part: object, which: str) -> ContentPart:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or kind not in _PART_KEYS or part.get(_PART_KEYS[kind]) is None:
        raise DataFormatError(
            f"{which}: a part of its content must be an object with a type and, under the name of that type, its "
            f"value; types are {', '.join(_PART_KEYS)}"
        )
    present = {key: value for key, value in part.items() if value is not None}  # Arrow fills up with nulls
    return cast(ContentPart, present)


def _as_parts(content: str | list[ContentPart]) -> list[ContentPart]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


def _tool_call(call: object, which: str) -> ToolCall:
    if not isinstance(call, dict):
        raise DataFormatError(f"{which}: a tool call must be an object, not {type(call).__name__}")
    body = call.get("function")
    if isinstance(body, dict) and not isinstance(body.get("arguments"), str):
        arguments = json.dumps(body.get("arguments") or {}, ensure_ascii=False)
        call = {**call, "function": {**body, "arguments": arguments}}
    fields = {key: call[key] for key in ("type", "id", "function") if call.get(key) is not None}
    try:
        return ToolCall.model_validate(fields)
    except pydantic.ValidationError as error:
        problem = error.errors()[0]
        at = ".".join(map(str, problem["loc"]))
        raise DataFormatError(f"{which}: a tool call cannot be read ({at}: {problem['msg']})") from error
