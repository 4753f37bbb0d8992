"""How families write calls of tools, and how they are read back.

A format states its tags and the inside of one call. Cutting calls out of a text, unterminated ones and the separators
around them are the same for all.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers.blocks import (
    ParsedCall,
    detect_unterminated_tool_block,
    parse_json_call,
    tool_call,
)
from tinker_cookbook.renderers.encoding import Encoder, Markup, Piece, Pieces
from tinker_cookbook.renderers.messages import ToolCall, ToolSpec, UnparsedToolCall


@dataclass(frozen=True)
class ToolCalls(ABC):
    open: str = "<tool_call>"
    close: str = "</tool_call>"
    before: str = ""  # between the text and the first call
    between: str = ""
    section: tuple[str, str] = ("", "")  # around all calls

    @abstractmethod
    def write_body(self, call: ToolCall) -> Pieces: ...

    @abstractmethod
    def read_body(self, body: str, block: str, encoder: Encoder) -> ParsedCall:
        """`body` is marked text (`Encoder.marked_text`); `block` is for the report of what cannot be read."""

    @property
    def tags(self) -> tuple[str, ...]:
        """All strings of the format that may be tokens of their own."""
        return tuple(tag for tag in (*self.section, self.open, self.close) if tag)

    @property
    def first_tag(self) -> str:
        return self.section[0] or self.open

    def write(self, calls: Sequence[ToolCall], *, after_text: bool) -> Pieces:
        if not calls:
            return []
        pieces: list[Piece] = [Markup((self.before if after_text else "") + self.section[0])]
        for i, call in enumerate(calls):
            start = self.between if i else ""
            pieces += [Markup(start + self.open), *self.write_body(call), Markup(self.close)]
        return [*pieces, Markup(self.section[1])]

    def read(self, text: str, encoder: Encoder, start: int) -> tuple[str, list[ParsedCall]]:
        """The text without the calls, and the calls, which begin at `start` (-1: nowhere). The text stays marked."""
        opening, closing = encoder.tag(self.open), encoder.tag(self.close)
        if start < 0:
            return text, []
        before, rest = text[:start].removesuffix(self.before), text[start:]
        calls: list[ParsedCall] = []
        outside: list[str] = []
        position = 0
        for match in re.finditer(f"{re.escape(opening)}(.*?){re.escape(closing)}", rest, re.DOTALL):
            outside.append(rest[position : match.start()])
            calls.append(self.read_body(match.group(1), encoder.unmarked(match.group()), encoder))
            position = match.end()
        last = rest[position:]
        unterminated = detect_unterminated_tool_block(last, opening, closing) or self._cut_section(
            last, encoder
        )
        if unterminated is not None:
            calls.append(
                UnparsedToolCall(
                    raw_text=encoder.unmarked(unterminated.raw_text),
                    error=encoder.unmarked(unterminated.error),
                )
            )
            last = last[: -len(unterminated.raw_text)]
        for marker in self.section:
            if marker:
                outside = [part.replace(encoder.tag(marker), "") for part in outside]
                last = last.replace(encoder.tag(marker), "")
        return before + "".join(part for part in [*outside, last] if part.strip()), calls

    def _cut_section(self, text: str, encoder: Encoder) -> UnparsedToolCall | None:
        """A section that ends before its first call begins."""
        first, last = (encoder.tag(marker) for marker in self.section)
        return detect_unterminated_tool_block(text, first, last) if first else None


@dataclass(frozen=True)
class JsonToolCalls(ToolCalls):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`; the arguments as they were written."""

    inner: str = ""

    def write_body(self, call: ToolCall) -> Pieces:
        name = json.dumps(call.function.name, ensure_ascii=False)
        return [f'{self.inner}{{"name": {name}, "arguments": {call.function.arguments}}}{self.inner}']

    def read_body(self, body: str, block: str, encoder: Encoder) -> ParsedCall:
        return parse_json_call(encoder.unmarked(body).strip(), block)


FUNCTION = re.compile(r"\s*<function=([^>\n]*)>\n?(.*?)</function>(.*)", re.DOTALL)
PARAMETER = re.compile(r"<parameter=([^>\n]*)>\n?(.*?)\n?</parameter>", re.DOTALL)


@dataclass(frozen=True)
class XmlToolCalls(ToolCalls):
    """`<function=NAME>` with a `<parameter=NAME>` block for each argument.

    Strings are written bare and everything else as JSON, so a string that reads as JSON ("5") comes back as what it
    reads as.
    """

    def write_body(self, call: ToolCall) -> Pieces:
        lines = [f"\n<function={call.function.name}>\n"]
        for name, value in _arguments(call).items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            lines.append(f"<parameter={name}>\n{text}\n</parameter>\n")
        return ["".join(lines) + "</function>\n"]

    def read_body(self, body: str, block: str, encoder: Encoder) -> ParsedCall:
        def unparsed(error: str) -> UnparsedToolCall:
            return UnparsedToolCall(raw_text=block, error=error)

        match = FUNCTION.fullmatch(encoder.unmarked(body))
        if match is None:
            return unparsed("Malformed tool call XML: no <function=NAME> ... </function>")
        name, inside, after = match.groups()
        if not name.strip():
            return unparsed("Missing function name")
        if after.strip():
            return unparsed(f"Unexpected trailing content {after.strip()!r} after </function>")
        if PARAMETER.sub("", inside).strip():
            return unparsed(f"Unexpected non-parameter content {PARAMETER.sub('', inside).strip()!r}")
        pairs = PARAMETER.findall(inside)
        if any(not parameter.strip() for parameter, _ in pairs):
            return unparsed("Empty parameter name")
        arguments = {parameter.strip(): json_or_text(value) for parameter, value in pairs}
        try:
            return tool_call(name.strip(), json.dumps(arguments, ensure_ascii=False))
        except ValueError as error:  # characters that are none
            return unparsed(str(error))


def json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _arguments(call: ToolCall) -> dict[str, Any]:
    try:
        arguments = json.loads(call.function.arguments)
    except ValueError as error:
        raise RendererError(
            f"the arguments of the call of {call.function.name!r} are not JSON: {call.function.arguments!r}"
        ) from error
    if not isinstance(arguments, dict):
        raise RendererError(f"the arguments of the call of {call.function.name!r} are not a JSON object")
    return arguments


@dataclass(frozen=True)
class NamedToolCalls(ToolCalls):
    """The name, a separating token, the arguments as they were written."""

    separator: str = ""

    @property
    def tags(self) -> tuple[str, ...]:
        return (*super().tags, self.separator)

    def write_body(self, call: ToolCall) -> Pieces:
        return [call.function.name, Markup(self.separator), call.function.arguments]

    def read_body(self, body: str, block: str, encoder: Encoder) -> ParsedCall:
        name, separator, arguments = body.partition(encoder.tag(self.separator))
        name, arguments = encoder.unmarked(name).strip(), encoder.unmarked(arguments).strip()
        try:
            if not (name and separator):
                raise ValueError(f"a name and {self.separator} are missing")
            if not isinstance(json.loads(arguments), dict):
                raise ValueError("the arguments are not a JSON object")
            return tool_call(name, arguments)
        except json.JSONDecodeError as error:
            return UnparsedToolCall(raw_text=block, error=f"Invalid JSON: {error}")
        except (ValueError, RecursionError) as error:
            return UnparsedToolCall(raw_text=block, error=str(error))


# --- declarations -----------------------------------------------------------------------------------------


def openai_tool(tool: ToolSpec) -> dict[str, Any]:
    return {"type": "function", "function": dict(tool)}


def json_line(value: Any) -> str:
    """As templates write JSON: blanks after separators, characters as they are."""
    return json.dumps(value, ensure_ascii=False)
