"""A conversation as data: messages, the parts of their content, tool calls.

Tool calls never live in `content`. Parts are dictionaries told apart by `type`, so a conversation is plain JSON but for
images.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

import pydantic

from tinker_cookbook.exceptions import RendererError

if TYPE_CHECKING:
    from PIL.Image import Image

Role = str
"""Usually system, user, assistant or tool; a family may know more (gpt-oss: developer)."""


class TextPart(TypedDict):
    """Text."""

    type: Literal["text"]
    text: str


class ImagePart(TypedDict):
    """An image."""

    type: Literal["image"]
    image: "str | Image"  # a string is a URL or a data URI


class AudioPart(TypedDict):
    """A sound."""

    type: Literal["audio"]
    audio: str | bytes  # a string is a data URI or a local path
    format: NotRequired[Literal["wav", "mp3", "flac"]]
    num_frames: NotRequired[int]
    sample_rate: NotRequired[int]


class ThinkingPart(TypedDict):
    """What a model thought before it spoke."""

    type: Literal["thinking"]
    thinking: str


ContentPart = TextPart | ImagePart | AudioPart | ThinkingPart
Content = str | list[ContentPart]


class ToolCall(pydantic.BaseModel):
    """`arguments` is JSON text, as models write it and as the OpenAI API passes it on."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    class FunctionBody(pydantic.BaseModel):
        name: str
        arguments: str

    type: Literal["function"] = "function"
    id: str | None = None
    function: FunctionBody


class UnparsedToolCall(pydantic.BaseModel):
    """What looked like a tool call and could not be read as one."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    raw_text: str
    error: str


class ToolSpec(TypedDict):
    """A tool on offer; `parameters` is a JSON schema. Not wrapped in `{"type": "function"}`."""

    name: str
    description: str
    parameters: dict[str, Any]


class Message(TypedDict):
    """One message of a conversation."""

    role: Role
    content: Content
    tool_calls: NotRequired[list[ToolCall]]
    unparsed_tool_calls: NotRequired[list[UnparsedToolCall]]
    trainable: NotRequired[bool]  # read by TrainOnWhat.CUSTOMIZED alone
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


class ParseTermination(StrEnum):
    """How a response ended."""

    STOP_SEQUENCE = "stop_sequence"
    EOS = "eos"
    MALFORMED = "malformed"

    @property
    def is_clean(self) -> bool:
        return self is not ParseTermination.MALFORMED

    @property
    def is_stop_sequence(self) -> bool:
        return self is ParseTermination.STOP_SEQUENCE


class ParseFailureKind(StrEnum):
    """What can be wrong with a response."""

    STRUCTURAL = "structural"  # the response did not end as it must
    CONTENT = "content"  # it ended well and holds a tool call that cannot be read


class TrainOnWhat(StrEnum):
    """Which tokens of a conversation are learned. A turn is all that follows the last message of the user."""

    LAST_ASSISTANT_MESSAGE = "last_assistant_message"
    LAST_ASSISTANT_TURN = "last_assistant_turn"
    ALL_ASSISTANT_MESSAGES = "all_assistant_messages"
    ALL_MESSAGES = "all_messages"
    ALL_TOKENS = "all_tokens"
    ALL_USER_AND_SYSTEM_MESSAGES = "all_user_and_system_messages"
    CUSTOMIZED = "customized"


PARSE_FAILURE_DETAIL_MAX_CHARS = 16384


def classify_parse_failure(
    message: Message, termination: ParseTermination
) -> tuple[ParseFailureKind, str] | None:
    """What was wrong with a response, and the words for it; None if nothing was."""
    if not termination.is_clean:
        return ParseFailureKind.STRUCTURAL, f"the response ended {termination.value}"
    unparsed = message.get("unparsed_tool_calls")
    if not unparsed:
        return None
    detail = "\n".join(call.error for call in unparsed)
    return ParseFailureKind.CONTENT, detail[:PARSE_FAILURE_DETAIL_MAX_CHARS]


# --- content ----------------------------------------------------------------------------------------------


def ensure_text(content: Content) -> str:
    """The text of content that is nothing but one text."""
    if isinstance(content, str):
        return content
    if len(content) == 1 and content[0]["type"] == "text":
        return content[0]["text"]
    kinds = ", ".join(part["type"] for part in content) or "nothing"
    raise RendererError(f"one text is needed here, and the content has: {kinds}")


def ensure_list(content: Content) -> list[ContentPart]:
    """Content as a list of parts; a string is one text."""
    return [TextPart(type="text", text=content)] if isinstance(content, str) else content


def get_text_content(message: Message) -> str:
    """All text parts, joined; the thinking left out. A string is returned as it is."""
    content = message["content"]
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")


def has_thinking(content: Content) -> bool:
    """Whether there is thinking in it, as a part or as a tag in the text."""
    if isinstance(content, str):
        return "<think>" in content
    return any(part["type"] == "thinking" for part in content)


def remove_thinking(parts: Sequence[ContentPart]) -> list[ContentPart]:
    """The parts without the thinking."""
    return [part for part in parts if part["type"] != "thinking"]


def format_content_as_string(content: Content, separator: str = "\n") -> str:
    """For people and for models that are shown a conversation as text; not what a renderer writes."""
    if isinstance(content, str):
        return content
    return separator.join(_format_part(part) for part in content)


def _format_part(part: ContentPart) -> str:
    if part["type"] == "text":
        return part["text"]
    if part["type"] == "thinking":
        return f"<think>{part['thinking']}</think>"
    if part["type"] == "image":
        image = part["image"]
        if isinstance(image, str):
            return f"<image>{image}</image>"
        return f"<image>Image({image.width}x{image.height}, {image.mode})</image>"
    if part["type"] == "audio":
        return f"<audio>{_describe_audio(part)}</audio>"
    raise RendererError(f"a content part of unknown type {part['type']!r}")


def _describe_audio(part: AudioPart) -> str:
    audio = part["audio"]
    return audio if isinstance(audio, str) else f"{part.get('format', 'wav')}, {len(audio)} bytes"


def content_to_jsonable(content: Content) -> str | list[dict[str, Any]]:
    """Images and sounds held in memory keep their description and lose their bytes."""
    return content if isinstance(content, str) else [_part_to_jsonable(part) for part in content]


def _part_to_jsonable(part: ContentPart) -> dict[str, Any]:
    if part["type"] == "image" and not isinstance(part["image"], str):
        return {"type": "image", "image": _format_part(part)}
    if part["type"] == "audio" and not isinstance(part["audio"], str):
        return {**part, "audio": _describe_audio(part)}
    return dict(part)


def message_to_jsonable(message: Message) -> dict[str, Any]:
    """A message as JSON can hold it."""
    plain: dict[str, Any] = {**message, "content": content_to_jsonable(message["content"])}
    for key in ("tool_calls", "unparsed_tool_calls"):
        if key in plain:
            plain[key] = [call.model_dump() for call in plain[key]]
    return plain
