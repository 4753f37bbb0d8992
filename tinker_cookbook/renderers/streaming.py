"""A response as it comes, token by token: deltas of text and thinking, and at the end the whole message.

What was given out, joined, is what the batch parser makes of the same tokens. So nothing is given out that might yet
turn out to be part of a tag, or of the blanks around one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tinker_cookbook.renderers.blocks import PLAIN_TAGS, ThinkTags, drop_shared_start
from tinker_cookbook.renderers.encoding import Encoder, decode_exactly, without_marks
from tinker_cookbook.renderers.messages import Message, ensure_list
from tinker_cookbook.renderers.tool_formats import ToolCalls
from tinker_cookbook.tokenizer_utils import Tokenizer


@dataclass(frozen=True)
class StreamingMessageHeader:
    """A message begins."""

    role: str
    name: str | None = None


@dataclass(frozen=True)
class StreamingTextDelta:
    """More text of the message."""

    text: str
    content_index: int = 0


@dataclass(frozen=True)
class StreamingThinkingDelta:
    """More thinking of the message."""

    thinking: str
    content_index: int = 0


MessageDelta = StreamingMessageHeader | StreamingTextDelta | StreamingThinkingDelta | Message

MOST_PENDING = 8  # tokens that one character may be spread over


class Utf8TokenDecoder:
    """Text of tokens that come one by one; half of a character is kept back until its other half has come."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._pending: list[int] = []

    def decode(self, tokens: Sequence[int]) -> str | None:
        """The text that is certain now; None if there is none."""
        self._pending += tokens
        for kept_back in range(min(MOST_PENDING, len(self._pending)) + 1):
            ready = self._pending[: len(self._pending) - kept_back]
            text = decode_exactly(self._tokenizer, ready) if ready else ""
            if text and not text.endswith("\ufffd"):
                self._pending = self._pending[len(ready) :]
                return text
        if len(self._pending) > MOST_PENDING:  # bytes that are no character: they will not become one
            return self._shed()
        return None

    def _shed(self) -> str:
        """All but the last tokens, which may begin a character; cut where the rest reads the same by itself."""
        whole = decode_exactly(self._tokenizer, self._pending)
        for kept in range(1, MOST_PENDING):
            text = decode_exactly(self._tokenizer, self._pending[:-kept])
            if text + decode_exactly(self._tokenizer, self._pending[-kept:]) == whole:
                self._pending = self._pending[-kept:]
                return text
        return self.flush()

    def flush(self) -> str:
        """What is left, complete or not."""
        text = decode_exactly(self._tokenizer, self._pending) if self._pending else ""
        self._pending = []
        return text

    def reset(self) -> None:
        self._pending = []

    def has_pending(self) -> bool:
        return bool(self._pending)


class StreamingParser:
    """Text as it comes, up to the token that ends the message; then the message."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        end_message_token: int,
        parse_final_response: Callable[[list[int]], Message],
    ):
        self._encoder = Encoder(tokenizer)
        self._decoder = Utf8TokenDecoder(tokenizer)
        self._end = end_message_token
        self._parse = parse_final_response
        self.reset()

    def reset(self) -> None:
        self._decoder.reset()
        self._tokens: list[int] = []
        self._ended = False
        self._header_sent = False
        self._buffer = ""  # marked text that has come and was not given out
        self._begun = False  # whether anything was given out of the current part
        self._given_out = {"text": "", "thinking": ""}
        self._index = 0

    def feed(self, token: int) -> list[MessageDelta]:
        if self._ended:
            return []
        self._tokens.append(token)
        if token == self._end:
            self._ended = True
            return []
        self._buffer += self._text_of(token)
        return list(self._give_out())

    def finish(self) -> list[MessageDelta]:
        """The rest, and the message."""
        self._buffer += without_marks(self._decoder.flush())
        deltas = list(self._give_out())
        message = self._parse(self._tokens)
        return [*deltas, *self._header(), *self._rest(message), message]

    def _text_of(self, token: int) -> str:
        name = self._encoder.control_name(token)
        if name is not None:
            return without_marks(self._decoder.flush()) + self._encoder.tag(name)
        return without_marks(self._decoder.decode([token]) or "")

    def _header(self) -> Iterator[MessageDelta]:
        if not self._header_sent:
            self._header_sent = True
            yield StreamingMessageHeader(role="assistant")

    def _give_out(self) -> Iterator[MessageDelta]:
        ready = self._buffer.rstrip()
        self._buffer = self._buffer[len(ready) :]
        yield from self._delta(ready)

    @property
    def _kind(self) -> Literal["text", "thinking"]:
        return "text"

    def _delta(self, text: str) -> Iterator[MessageDelta]:
        if text:
            yield from self._header()
            text = self._encoder.unmarked(text)
            self._begun = True
            self._given_out[self._kind] += text
            yield self._make(text)

    def _make(self, text: str) -> MessageDelta:
        if self._kind == "thinking":
            return StreamingThinkingDelta(text, self._index)
        return StreamingTextDelta(text, self._index)

    def _rest(self, message: Message) -> Iterator[MessageDelta]:
        """What the message has more of the current kind than was given out."""
        kind = self._kind
        whole = "".join(str(p.get(kind)) for p in ensure_list(message["content"]) if p["type"] == kind)
        given_out = self._given_out[kind]
        if whole.startswith(given_out) and whole != given_out:
            yield self._make(whole[len(given_out) :])


class ReasoningStreamingParser(StreamingParser):
    """Thinking told from text by its tags. From the first tag of a tool call on, only the end tells more."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        end_message_token: int,
        parse_final_response: Callable[[list[int]], Message],
        tags: ThinkTags | None = PLAIN_TAGS,
        tools: ToolCalls | None = None,
        *,
        starts_thinking: bool = False,
    ):
        self._starts_thinking = starts_thinking
        self._thinks = tags is not None
        self._plain_tags = tags or PLAIN_TAGS
        self._tools = tools
        super().__init__(tokenizer, end_message_token, parse_final_response)

    def reset(self) -> None:
        super().reset()
        self._tags = self._plain_tags.marked(self._encoder.tag)
        self._tool_tag = self._encoder.tag(self._tools.first_tag) if self._tools else None
        self._thinking = self._starts_thinking
        self._calling = False
        self._frame = (
            self._tags.inner if self._thinking else ""
        )  # what the part may begin with and does not count

    @property
    def _kind(self) -> Literal["text", "thinking"]:
        return "thinking" if self._thinking else "text"

    def _give_out(self) -> Iterator[MessageDelta]:
        while not self._calling and (found := self._next_tag()) is not None:
            position, tag = found
            yield from self._part_delta(self._buffer[:position].removesuffix(self._before(tag)))
            self._buffer = self._buffer[position + len(tag) :]
            self._enter(tag)
        if not self._calling:
            sure = self._buffer[: len(self._buffer) - self._held_back()].rstrip()
            yield from self._part_delta(sure)
            self._buffer = self._buffer[len(sure) :]

    def _next_tag(self) -> tuple[int, str] | None:
        found = [(self._buffer.find(tag), tag) for tag in self._awaited()]
        return min(((position, tag) for position, tag in found if position >= 0), default=None)

    def _awaited(self) -> list[str]:
        if self._thinking:
            return [self._tags.close]
        return [*([self._tags.open] if self._thinks else []), *([self._tool_tag] if self._tool_tag else [])]

    def _held_back(self) -> int:
        """Length of the longest end that may be the beginning of a tag."""
        return max((_longest_matching_suffix_prefix(self._buffer, tag) for tag in self._awaited()), default=0)

    def _enter(self, tag: str) -> None:
        self._begun = False
        if tag == self._tool_tag:
            self._calling = True
            return
        self._thinking = tag == self._tags.open
        self._index += 1
        self._frame = self._tags.inner if self._thinking else self._tags.after

    def _before(self, tag: str) -> str:
        """What a family writes before this tag, and which is not part of the text."""
        if self._thinking:
            return self._tags.inner
        return self._tools.before if self._tools is not None and tag == self._tool_tag else ""

    def _part_delta(self, text: str) -> Iterator[MessageDelta]:
        yield from self._delta(text if self._begun else drop_shared_start(text, self._frame))


def _longest_matching_suffix_prefix(text: str, tag: str) -> int:
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0
