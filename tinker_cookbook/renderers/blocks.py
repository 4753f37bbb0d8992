"""Blocks within the text of a response: thinking and tool calls between tags.

What the tags are, and which newlines a family puts around them, is stated by `ThinkTags` and by the tool formats; the
reading is written once, here, for whole texts. `streaming.py` follows the same tags token by token.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tinker_cookbook.renderers.messages import (
    ContentPart,
    TextPart,
    ThinkingPart,
    ToolCall,
    UnparsedToolCall,
)

UNTERMINATED_TOOL_BLOCK_ERROR = "unterminated tool block"
ParsedCall = ToolCall | UnparsedToolCall


@dataclass(frozen=True)
class ThinkTags:
    """How a family writes thinking: open, inner, the thinking, inner, close, after, the text."""

    open: str = "<think>"
    close: str = "</think>"
    inner: str = ""
    after: str = ""

    def marked(self, tag: Callable[[str], str]) -> "ThinkTags":
        return replace(self, open=tag(self.open), close=tag(self.close))

    @property
    def opening(self) -> str:
        return self.open + self.inner

    @property
    def closing(self) -> str:
        return self.inner + self.close + self.after


PLAIN_TAGS = ThinkTags()


def split_thinking(text: str, tags: ThinkTags, *, open_ended: bool = False) -> list[ContentPart]:
    """Thinking and text in their order, without empty ones.

    A block that was never closed is text, since nobody can tell where it was to end; with `open_ended` (a response
    that was cut off) it is thinking.
    """
    end = "|$" if open_ended else ""
    pattern = re.compile(f"{re.escape(tags.open)}(.*?)(?:{re.escape(tags.close)}{end})", re.DOTALL)
    parts: list[ContentPart] = []
    position = 0
    for match in pattern.finditer(text):
        parts += _text(_after(text[position : match.start()], tags, first=position == 0))
        thinking = match.group(1).removeprefix(tags.inner).removesuffix(tags.inner)
        if thinking:
            parts.append(ThinkingPart(type="thinking", thinking=thinking))
        position = match.end()
    return parts + _text(_after(text[position:], tags, first=position == 0))


def _after(text: str, tags: ThinkTags, *, first: bool) -> str:
    return text if first else drop_shared_start(text, tags.after)


def drop_shared_start(text: str, start: str) -> str:
    """`text` without what it begins with of `start`: a model may write one newline where two are usual."""
    length = next((n for n in range(len(start), 0, -1) if text.startswith(start[:n])), 0)
    return text[length:]


def _text(text: str) -> list[ContentPart]:
    return [TextPart(type="text", text=text)] if text else []


def parse_think_blocks(text: str) -> list[ContentPart] | None:
    """Closed `<think>` blocks and the text around them; None if there is no such tag."""
    return split_thinking(text, PLAIN_TAGS) if PLAIN_TAGS.open in text else None


def find_outside_thinking(text: str, tag: str, tags: ThinkTags, *, open_ended: bool = False) -> int:
    """Where `tag` first stands that no think block holds; -1 if nowhere."""
    end = "|$" if open_ended else ""
    block = f"{re.escape(tags.open)}.*?(?:{re.escape(tags.close)}{end})"
    for match in re.finditer(f"{block}|({re.escape(tag)})", text, re.DOTALL):
        if match.group(1):
            return match.start()
    return -1


BLOCK_PATTERN = re.compile(r"<think>(.*?)</think>|<tool_call>(.*?)</tool_call>", re.DOTALL)


def parse_content_blocks(text: str) -> tuple[list[ContentPart], list[ParsedCall]] | None:
    """Closed `<think>` and `<tool_call>` blocks and the text around them; None if there is neither tag.

    What stands within a block belongs to that block: a call that the model only thinks of is none.
    """
    if "<think>" not in text and "<tool_call>" not in text:
        return None
    parts: list[ContentPart] = []
    calls: list[ParsedCall] = []
    position = 0
    for match in BLOCK_PATTERN.finditer(text):
        parts += _text(text[position : match.start()])
        thinking, call = match.groups()
        if thinking:
            parts.append(ThinkingPart(type="thinking", thinking=thinking))
        elif call is not None:
            calls.append(parse_json_call(call.strip(), match.group()))
        position = match.end()
    return parts + _text(text[position:]), calls


def parse_json_call(body: str, block: str) -> ParsedCall:
    """`{"name": ..., "arguments": {...}}`. The arguments keep the very text the model wrote, where it can be told."""
    try:
        return _read_json_call(body)
    except json.JSONDecodeError as error:
        return UnparsedToolCall(raw_text=block, error=f"Invalid JSON: {error}")
    except (ValueError, RecursionError) as error:  # ours below; numbers, nesting or characters beyond reason
        return UnparsedToolCall(raw_text=block, error=str(error))


def _read_json_call(body: str) -> ToolCall:
    call = json.loads(body)
    if not isinstance(call, dict):
        raise ValueError("Tool call is not a JSON object")
    name, arguments, call_id = call.get("name"), call.get("arguments"), call.get("id")
    if not isinstance(name, str):
        raise ValueError("Missing or invalid 'name' field")
    if not isinstance(arguments, dict):
        raise ValueError("Missing or invalid 'arguments' field")
    as_written = _arguments_as_written(body, name, arguments)
    return tool_call(name, as_written, call_id if isinstance(call_id, str) else None)


def _arguments_as_written(body: str, name: str, arguments: dict[str, Any]) -> str:
    start = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '
    if body.startswith(start):
        written = body[len(start) : -1]
        try:
            if json.loads(written) == arguments:
                return written
        except json.JSONDecodeError:  # something follows the arguments
            pass
    return json.dumps(arguments, ensure_ascii=False)


def tool_call(name: str, arguments: str, call_id: str | None = None) -> ToolCall:
    """ValueError for half a surrogate pair, which JSON can spell and no tokenizer can write again."""
    f"{name}{arguments}{call_id}".encode()
    return ToolCall(id=call_id, function=ToolCall.FunctionBody(name=name, arguments=arguments))


def detect_unterminated_tool_block(
    content: str, open_marker: str, close_marker: str
) -> UnparsedToolCall | None:
    """The last block, if it was opened and never closed."""
    if content.count(open_marker) <= content.count(close_marker):
        return None
    return UnparsedToolCall(
        raw_text=content[content.rindex(open_marker) :],
        error=f"{UNTERMINATED_TOOL_BLOCK_ERROR}: {open_marker} without {close_marker}",
    )
