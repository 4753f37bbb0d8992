"""Chat messages and tools as OpenAI's clients send them → as chat templates take them."""

import json
from collections.abc import Mapping
from typing import Any

from tinker_engine.errors import InputError
from tinker_engine.wire.fields import check_text

# Templates were written before "developer"; it is the newer name of "system".
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_KEPT = ("name", "tool_call_id", "reasoning_content")
_PASSED_OVER = {"refusal", "annotations"}  # in our own answers, as clients send them back


def read_messages(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise InputError("messages", "must be a list of at least one message")
    return [_message(item, f"messages[{i}]") for i, item in enumerate(value)]


def read_tools(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise InputError("tools", "must be a list of functions")
    for i, tool in enumerate(value):
        where = f"tools[{i}]"
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InputError(where, 'must be {"type": "function", "function": {"name": ..., ...}}')
    return value


def _message(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(where, "must be an object with role and content")
    given = {name: item for name, item in value.items() if item is not None and item != []}
    role = given.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise InputError(f"{where}.role", f"must be one of {', '.join(_ROLES)}")
    known = {"role", "content", "tool_calls", *_KEPT, *_PASSED_OVER}
    if unknown := sorted(set(given) - known):
        raise InputError(f"{where}.{unknown[0]}", "is not supported; leave it out")
    message: dict[str, Any] = {"role": _ROLES[role], "content": _content(given, role, where)}
    for name in _KEPT:
        if name in given:
            message[name] = _text(given[name], f"{where}.{name}")
    if "tool_calls" in given:
        message["tool_calls"] = _tool_calls(given["tool_calls"], f"{where}.tool_calls")
    return message


def _content(message: Mapping[str, Any], role: str, where: str) -> str | None:
    content = message.get("content")
    if content is None:
        if role == "assistant":
            return None
        raise InputError(f"{where}.content", "is missing")
    if isinstance(content, list):
        return "".join(_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))
    return _text(content, f"{where}.content")


def _part(part: Any, where: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise InputError(where, 'only parts of the form {"type": "text", "text": ...} are supported')
    return _text(part.get("text"), f"{where}.text")


def _tool_calls(value: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise InputError(where, "must be a list")
    return [_tool_call(item, f"{where}[{i}]") for i, item in enumerate(value)]


def _tool_call(value: Any, where: str) -> dict[str, Any]:
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InputError(where, "must have a function with a name and arguments")
    arguments = _arguments(function.get("arguments"), f"{where}.function.arguments")
    return {
        "id": value.get("id"),
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _arguments(value: Any, where: str) -> dict[str, Any]:
    """The API has them as JSON text; templates write JSON themselves and would quote a text once more."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise InputError(where, f"is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(where, "must be a JSON object, as text")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(where, "must be a string")
    return check_text(value, where)
