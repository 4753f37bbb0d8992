"""The text of a reply, as it comes → reasoning, content and tool calls.

Models write `<think>…</think>` first and `<tool_call>{"name": …, "arguments": {…}}</tool_call>` anywhere. What
is not well-formed is text like any other: it is held back until that is known, and never lost.
"""

import json
import secrets
from dataclasses import dataclass, field
from typing import NoReturn

THINK, END_THINK = "<think>", "</think>"
CALL, END_CALL = "<tool_call>", "</tool_call>"


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: str  # JSON
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}")


@dataclass
class Parts:
    """What is known of a reply, or what is new of it."""

    reasoning: str = ""
    content: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    def add(self, more: "Parts") -> None:
        self.reasoning += more.reasoning
        self.content += more.content
        self.tool_calls += more.tool_calls

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.content or self.tool_calls)


class Reply:
    def __init__(self, *, with_tools: bool):
        """Without tools a tool call is text: the caller would not know what to do with it."""
        self._with_tools = with_tools
        self._at_beginning = True
        self._called = False
        self._held = ""

    def add(self, text: str, *, last: bool) -> Parts:
        self._held += text
        parts = Parts()
        if self._at_beginning and not self._read_reasoning(parts, last):
            return parts
        while self._with_tools and self._read_call(parts):
            pass
        keep = 0 if last or not self._with_tools else self._undecided()
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        if last and self._called and not shown.strip():
            return parts  # space after a call, like that before it
        parts.content += shown
        return parts

    def _read_reasoning(self, parts: Parts, last: bool) -> bool:
        """Whether the beginning is over."""
        if self._held.startswith(THINK):
            reasoning, end, rest = self._held[len(THINK) :].partition(END_THINK)
            if end:
                parts.reasoning, self._held = reasoning, rest
            elif not last:
                return False
        elif THINK.startswith(self._held) and not last:
            return False
        self._at_beginning = False
        return True

    def _read_call(self, parts: Parts) -> bool:
        """Take one whole call, well-formed or not, from what is held; whether there was one."""
        before, start, rest = self._held.partition(CALL)
        written, end, after = rest.partition(END_CALL)
        if not (start and end):
            return False
        if call := parse_call(written):
            parts.tool_calls.append(call)
            parts.content += before.rstrip()
            self._called = True
        else:
            parts.content += before + start + written + end
        self._held = after
        return True

    def _undecided(self) -> int:
        """How many characters at the end may belong to a call, with the space before it."""
        place = self._held.find(CALL)
        if place >= 0:
            return len(self._held) - len(self._held[:place].rstrip())
        begun = next(n for n in range(len(CALL), -1, -1) if self._held.endswith(CALL[:n]))
        before = self._held[: len(self._held) - begun]
        return len(self._held) - len(before.rstrip())


def parse_call(written: str) -> ToolCall | None:
    try:
        call = json.loads(written, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or set(call) != {"name", "arguments"}:
        return None
    name, arguments = call["name"], call["arguments"]
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
