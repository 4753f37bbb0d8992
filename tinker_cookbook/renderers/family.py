"""A family of models, stated by its facts.

A subclass says what stands before a message (`header`), what ends it (`end`), how thinking and calls of tools are
written (`think`, `tools`), and what of an answer a prompt writes already (`prefill`). How messages become tokens, how
responses are parsed and streamed, follows from that.
"""

import logging
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

import tinker

from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers.blocks import ThinkTags, find_outside_thinking, split_thinking
from tinker_cookbook.renderers.encoding import Markup, Piece, Pieces, common_length, text_chunk
from tinker_cookbook.renderers.messages import (
    Content,
    ContentPart,
    Message,
    ParseTermination,
    Role,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolSpec,
    UnparsedToolCall,
    ensure_list,
)
from tinker_cookbook.renderers.renderer import (
    RenderContext,
    RenderedMessage,
    Renderer,
    with_inserted_system,
)
from tinker_cookbook.renderers.stops import split_at_stop
from tinker_cookbook.renderers.streaming import MessageDelta, ReasoningStreamingParser
from tinker_cookbook.renderers.tool_formats import ToolCalls
from tinker_cookbook.tokenizer_utils import Tokenizer

logger = logging.getLogger(__name__)


class FamilyRenderer(Renderer):
    supports_streaming = True

    bos: ClassVar[str] = ""
    end: ClassVar[str]  # the token that ends a message, and a response
    structure: ClassVar[tuple[str, ...]] = ()  # what else must be a token, lest messages run together
    think: ClassVar[ThinkTags | None] = None
    tools: ClassVar[ToolCalls | None] = None
    prefill: ClassVar[str] = ""  # what a prompt writes of the answer itself
    default_system: ClassVar[str] = ""  # said where the conversation does not begin with a system message

    # --- the facts -----------------------------------------------------------------------------------

    @abstractmethod
    def header(self, message: Message, ctx: RenderContext) -> Pieces:
        """What stands before the message. Roles are plain text, since anyone may make one up."""

    def body(self, message: Message, ctx: RenderContext) -> Pieces:
        """What a message says, unless it is an answer (`answer`)."""
        return self.text(message)

    def ends(self, message: Message, ctx: RenderContext) -> str:
        return self.end

    def prefill_for(self, ctx: RenderContext) -> str:
        return self.prefill

    def frames(self, ctx: RenderContext, *, thinking: bool) -> bool:
        """Whether this answer is shown with a think block, an empty one if there was no thinking.

        Without one, its thinking is left out.
        """
        return thinking

    def trim(self, text: str, *, framed: bool) -> str:
        """The text of an answer, as its family's template trims it."""
        return text

    def trim_thinking(self, thinking: str) -> str:
        return thinking

    def declare_tools(self, tools: list[ToolSpec], system_prompt: str) -> str:
        """The system message that tells of tools."""
        raise NotImplementedError(f"{type(self).__name__} knows no tools")

    # --- rendering -----------------------------------------------------------------------------------

    def __init__(self, tokenizer: Tokenizer):
        super().__init__(tokenizer)
        self._end_message_token = self.encoder.control(self.end)
        for token in (*self.structure, *([self.bos] if self.bos else [])):
            self.encoder.control(token)
        self._warned_of_tags = False

    @property
    def has_extension_property(self) -> bool:
        return True

    def get_stop_sequences(self) -> list[str] | list[int]:
        return [self._end_message_token]

    @property
    def _bos_tokens(self) -> list[int]:
        return [self.encoder.control(self.bos)] if self.bos else []

    def _conversation(self, messages: Sequence[Message]) -> list[Message]:
        if self.default_system and (not messages or messages[0]["role"] != "system"):
            return with_inserted_system(messages, self.default_system)
        return list(messages)

    def render_message(self, message: Message, ctx: RenderContext) -> RenderedMessage:
        header = list(self.header(message, ctx))
        end = Markup(self.ends(message, ctx))
        if message["role"] != "assistant":
            return self._rendered_as_one(header, [*self.body(message, ctx), end])
        answer = list(self.answer(message, ctx))
        if answer and isinstance(answer[0], Markup) and answer[0] == self.prefill_for(ctx):
            header.append(answer.pop(0))
        tokens = self.encoder.tokens(header)
        return RenderedMessage(
            header=tinker.EncodedTextChunk(tokens=tokens) if tokens else None,
            output=self.encoder.chunks([*answer, end]),
        )

    def _rendered_as_one(self, header: Pieces, output: Pieces) -> RenderedMessage:
        """Nobody samples these, so header and text are encoded together, as the model's own template would."""
        tokens = self.encoder.tokens([*header, *output])
        split = common_length(tokens, self.encoder.tokens(header))
        return RenderedMessage(
            header=tinker.EncodedTextChunk(tokens=tokens[:split]) if split else None,
            output=text_chunk(tokens[split:]),
        )

    def _get_generation_suffix(self, role: Role, ctx: RenderContext) -> list[int]:
        header = self.header(Message(role=role, content=""), ctx)
        return self.encoder.tokens([*header, Markup(self.prefill_for(ctx) if role == "assistant" else "")])

    def answer(self, message: Message, ctx: RenderContext) -> Pieces:
        """What an assistant message says: thinking and text in their order, then the calls of tools."""
        parts = self.parts(message["content"])
        thinking = any(part["type"] == "thinking" for part in parts)
        framed = self.frames(ctx, thinking=thinking)
        parts = self._trim_texts(parts, framed=thinking or framed)
        pieces: list[Piece] = []
        if (
            framed
            and (not thinking or self.prefill_for(ctx))
            and (not parts or parts[0]["type"] != "thinking")
        ):
            pieces += self._block("")
        for part in parts:
            if part["type"] == "thinking" and framed:
                pieces += self._block(part["thinking"])
            elif part["type"] == "text":
                pieces.append(part["text"])
        after_text = any(part["type"] == "text" for part in parts)
        return [*pieces, *self._calls(message, after_text=after_text)]

    def _trim_texts(self, parts: Sequence[ContentPart], *, framed: bool) -> list[ContentPart]:
        trimmed: list[ContentPart] = [
            {**part, "text": self.trim(part["text"], framed=framed)} if part["type"] == "text" else part
            for part in parts
        ]
        return [part for part in trimmed if part["type"] != "text" or part["text"]]

    def _block(self, thinking: str) -> Pieces:
        assert self.think is not None, "only families that think frame it"
        empty = self.think.opening + self.think.closing
        if not thinking and self.prefill == empty:
            return [Markup(empty)]
        return [Markup(self.think.opening), thinking, Markup(self.think.closing)]

    def _calls(self, message: Message, *, after_text: bool) -> Pieces:
        calls = message.get("tool_calls", [])
        if calls and self.tools is None:
            raise RendererError(f"{type(self).__name__} cannot write calls of tools")
        return self.tools.write(calls, after_text=after_text) if self.tools is not None else []

    def parts(self, content: Content) -> list[ContentPart]:
        """An answer's thinking and text, one text where several meet, and nothing that is empty.

        Thinking that stands in a string is told apart by its tags.
        """
        if isinstance(content, str) and self.think is not None and self._reads_as_thinking(content):
            if self.think.open not in content:
                content = self.think.open + content
            content = split_thinking(content, self.think)
        parts: list[ContentPart] = []
        for part in ensure_list(content):
            if part["type"] == "thinking":
                parts += self._thinking(part["thinking"])
            elif part["type"] != "text":
                raise RendererError(f"{type(self).__name__} writes text, and the message has {part['type']}")
            elif parts and parts[-1]["type"] == "text":
                parts[-1] = TextPart(type="text", text=parts[-1]["text"] + part["text"])
            elif part["text"]:
                parts.append(part)
        for part in parts:
            if part["type"] == "text":
                self._warn_of_tags(part["text"])
        return parts

    def _reads_as_thinking(self, text: str) -> bool:
        return self.think is not None and self.think.close in text

    def _thinking(self, thinking: str) -> list[ContentPart]:
        if self.think is None:
            raise RendererError(f"{type(self).__name__} cannot write thinking")
        trimmed = self.trim_thinking(thinking)
        return [ThinkingPart(type="thinking", thinking=trimmed)] if trimmed else []

    def _warn_of_tags(self, text: str) -> None:
        if self.tools is not None and self.tools.open in text and not self._warned_of_tags:
            self._warned_of_tags = True
            logger.warning(
                "the text of an assistant message holds %r, which is written as text and not as the tag; "
                "calls of tools belong in `tool_calls`",
                self.tools.open,
            )

    def text(self, message: Message) -> Pieces:
        """Of a message that is no answer. In a system message, which is the developer's, tags are tags."""
        parts = ensure_list(message["content"])
        for part in parts:
            if part["type"] != "text":
                raise RendererError(
                    f"{type(self).__name__} reads text, and a {message['role']} message has {part['type']}"
                )
        text = "".join(part["text"] for part in parts if part["type"] == "text")
        if message["role"] != "system":
            return [text]
        tags = "|".join(map(re.escape, self.tags))
        return [Markup(p) if p in self.tags else p for p in re.split(f"({tags})", text)] if tags else [text]

    @property
    def tags(self) -> tuple[str, ...]:
        """What may stand within a message; never what begins or ends one."""
        thinking = (self.think.open, self.think.close) if self.think is not None else ()
        return (*thinking, *(self.tools.tags if self.tools is not None else ()))

    def create_conversation_prefix_with_tools(
        self, tools: list[ToolSpec], system_prompt: str = ""
    ) -> list[Message]:
        if not tools:
            return [Message(role="system", content=system_prompt)] if system_prompt else []
        return [Message(role="system", content=self.declare_tools(tools, system_prompt))]

    # --- parsing -------------------------------------------------------------------------------------

    def parse_response(self, response: list[int]) -> tuple[Message, ParseTermination]:
        if self._end_message_token not in response:
            return Message(role="assistant", content=self._decode(response)), ParseTermination.MALFORMED
        before, termination = split_at_stop(response, (self._end_message_token,))
        return self._parse(before), termination

    def _parse(self, tokens: Sequence[int], *, open_ended: bool = False) -> Message:
        text = self._with_prefill(self.encoder.marked_text(tokens))
        calls: list[ToolCall | UnparsedToolCall] = []
        if self.tools is not None:
            text, calls = self.tools.read(text, self.encoder, self._first_call(text, open_ended=open_ended))
        parts: list[ContentPart] = [TextPart(type="text", text=text)] if text else []
        if self.think is not None:
            tags = self.think.marked(self.encoder.tag)
            parts = split_thinking(text, tags, open_ended=open_ended)
        message = Message(role="assistant", content=self._content(parts))
        if parsed := [call for call in calls if isinstance(call, ToolCall)]:
            message["tool_calls"] = parsed
        if unparsed := [call for call in calls if isinstance(call, UnparsedToolCall)]:
            message["unparsed_tool_calls"] = unparsed
        return message

    def _first_call(self, text: str, *, open_ended: bool) -> int:
        """Where calls of tools begin. A call that the model only thinks of is none."""
        assert self.tools is not None
        tag = self.encoder.tag(self.tools.first_tag)
        if self.think is None:
            return text.find(tag)
        return find_outside_thinking(text, tag, self.think.marked(self.encoder.tag), open_ended=open_ended)

    def _with_prefill(self, text: str) -> str:
        """A response to a prompt that opened a think block closes one that it did not open."""
        if self.think is None:
            return text
        tags = self.think.marked(self.encoder.tag)
        closed = text.find(tags.close)
        if closed >= 0 and tags.open not in text[:closed]:
            return tags.opening + text
        return text

    def _content(self, parts: Sequence[ContentPart]) -> Content:
        """A string where there is only text, and none that would be taken for thinking in a string."""
        unmarked: list[ContentPart] = []
        for part in parts:
            if part["type"] == "text":
                unmarked.append({**part, "text": self.encoder.unmarked(part["text"])})
            elif part["type"] == "thinking":
                unmarked.append({**part, "thinking": self.encoder.unmarked(part["thinking"])})
        text = "".join(part["text"] for part in unmarked if part["type"] == "text")
        only_text = all(part["type"] == "text" for part in unmarked)
        return text if only_text and not self._reads_as_thinking(text) else unmarked

    def parse_response_streaming(self, response: list[int]) -> Iterator[MessageDelta]:
        parser = self.streaming_parser(starts_thinking=self._closes_first(response))
        for token in response:
            yield from parser.feed(token)
        yield from parser.finish()

    def streaming_parser(self, *, starts_thinking: bool = False) -> ReasoningStreamingParser:
        """For tokens that are still coming; `starts_thinking` if the prompt has opened a think block."""
        return ReasoningStreamingParser(
            self.tokenizer,
            self._end_message_token,
            self._parse_stream,
            self.think,
            self.tools,
            starts_thinking=starts_thinking,
        )

    def _closes_first(self, response: list[int]) -> bool:
        text = self.encoder.marked_text(response)
        return self._with_prefill(text) != text

    def _parse_stream(self, tokens: list[int]) -> Message:
        before, _ = split_at_stop(tokens, (self._end_message_token,))
        return self._parse(before, open_ended=len(before) == len(tokens))
