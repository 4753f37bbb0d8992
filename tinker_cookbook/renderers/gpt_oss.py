"""gpt-oss and its Harmony format: an answer is several messages, each with a channel.

Thinking goes to `analysis`, words before a call of a tool to `commentary`, the answer to `final`. A call is a message
to `functions.NAME`. A system message of the conversation is Harmony's developer message; Harmony's own system message,
which states the model's identity and effort, is written only if an effort is asked for.
"""

import json
import logging
import re
from collections.abc import Sequence

import tinker

from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers.blocks import UNTERMINATED_TOOL_BLOCK_ERROR, tool_call
from tinker_cookbook.renderers.encoding import Markup, Piece, Pieces
from tinker_cookbook.renderers.messages import (
    ContentPart,
    Message,
    ParseTermination,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolSpec,
    UnparsedToolCall,
    ensure_list,
    ensure_text,
)
from tinker_cookbook.renderers.renderer import RenderContext, RenderedMessage, Renderer
from tinker_cookbook.renderers.stops import split_at_stop
from tinker_cookbook.renderers.typescript import tool_namespace
from tinker_cookbook.tokenizer_utils import Tokenizer

logger = logging.getLogger(__name__)

HARMONY_SYSTEM = "harmony_system"
"""The role of Harmony's own system message in a conversation; `system` is the developer's."""

CHANNELS = "# Valid channels: analysis, commentary, final. Channel must be included for every message."
ROUTING = "Calls to these tools must go to the commentary channel: 'functions'."
AGAIN = Markup("<|end|><|start|>assistant")


class GptOssRenderer(Renderer):
    def __init__(
        self,
        tokenizer: Tokenizer,
        use_system_prompt: bool = False,
        reasoning_effort: str | None = None,
        current_date: str | None = None,
    ):
        """`current_date` is written only if it is given: a prompt does not depend on the day it is made."""
        super().__init__(tokenizer)
        if use_system_prompt and reasoning_effort not in ("low", "medium", "high"):
            raise RendererError(f"reasoning_effort is low, medium or high, not {reasoning_effort!r}")
        self._identity = self._system_text(reasoning_effort, current_date) if use_system_prompt else None
        for token in ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"):
            self.encoder.control(token)
        self._stops = [self.encoder.control("<|return|>"), self.encoder.control("<|call|>")]

    @staticmethod
    def _system_text(effort: str | None, date: str | None) -> str:
        today = f"Current date: {date}\n" if date else ""
        return (
            "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n"
            f"{today}\nReasoning: {effort}\n\n{CHANNELS}"
        )

    def get_stop_sequences(self) -> list[str] | list[int]:
        return self._stops

    def create_conversation_prefix_with_tools(
        self, tools: list[ToolSpec], system_prompt: str = ""
    ) -> list[Message]:
        if not tools:
            return [Message(role="system", content=system_prompt)] if system_prompt else []
        instructions = f"# Instructions\n\n{system_prompt}\n\n" if system_prompt else ""
        return [
            Message(role=HARMONY_SYSTEM, content=f"{CHANNELS}\n{ROUTING}"),
            Message(
                role="developer", content=f"{instructions}# Tools\n\n{tool_namespace('functions', tools)}"
            ),
        ]

    def _conversation(self, messages: Sequence[Message]) -> list[Message]:
        """With the system message, if there is to be one; without instructions that say nothing."""
        rest = [m for m in messages if not (m["role"] == "system" and not ensure_text(m["content"]))]
        if self._identity is None:
            return rest
        system = Message(role=HARMONY_SYSTEM, content=self._identity)
        if rest and rest[0]["role"] == HARMONY_SYSTEM:
            given, rest = rest[0], rest[1:]
            routing = f"\n{ROUTING}" if ROUTING in ensure_text(given["content"]) else ""
            system = Message(**{**given, "content": self._identity + routing})
        elif any("trainable" in message for message in messages):
            system["trainable"] = False
        return [system, *rest]

    # --- rendering -----------------------------------------------------------------------------------

    def render_message(self, message: Message, ctx: RenderContext) -> RenderedMessage:
        header, output = self._pieces(message, ctx)
        return RenderedMessage(
            header=tinker.EncodedTextChunk(tokens=self.encoder.tokens([Markup("<|start|>"), *header])),
            output=self.encoder.chunks(output),
        )

    def _pieces(self, message: Message, ctx: RenderContext) -> tuple[Pieces, Pieces]:
        begin, end = Markup("<|message|>"), Markup("<|end|>")
        match message["role"]:
            case "assistant":
                return ["assistant"], self._answer(message, ctx)
            case "system":
                text = f"# Instructions\n\n{ensure_text(message['content'])}\n\n"
                return ["developer"], [begin, text, end]
            case "tool":
                head = [
                    f"functions.{self._tool_name(message, ctx)} to=assistant",
                    Markup("<|channel|>commentary"),
                ]
                return head, [begin, ensure_text(message["content"]), end]
            case role:
                name = "system" if role == HARMONY_SYSTEM else role
                return [name], [begin, ensure_text(message["content"]), end]

    def _tool_name(self, message: Message, ctx: RenderContext) -> str:
        """Harmony names the tool that speaks; a result that does not is matched with the call it answers."""
        if name := message.get("name"):
            return name
        for earlier in reversed(ctx.messages[: ctx.idx]):
            calls = earlier.get("tool_calls", [])
            asked = message.get("tool_call_id")
            same = [call for call in calls if asked is None or call.id == asked]
            if earlier["role"] == "assistant" and same:
                return same[-1].function.name
        logger.warning(
            "a result of a tool names neither the tool nor the call it answers; written as unknown"
        )
        return "unknown"

    def _answer(self, message: Message, ctx: RenderContext) -> Pieces:
        calls = message.get("tool_calls", [])
        pieces: list[Piece] = []
        if self._shows_thinking(ctx, calls):
            for thinking in _texts(message, "thinking"):
                pieces += [Markup("<|channel|>analysis<|message|>"), thinking, AGAIN]
        text = "".join(_texts(message, "text"))
        if not calls:
            end = Markup("<|return|>" if ctx.is_last else "<|end|>")
            return [*pieces, Markup("<|channel|>final<|message|>"), text, end]
        if text:
            pieces += [Markup("<|channel|>commentary<|message|>"), text, AGAIN]
        for i, call in enumerate(calls):
            pieces += [
                *([Markup("<|start|>assistant")] if i else []),
                f" to=functions.{call.function.name}",
                Markup("<|channel|>commentary <|constrain|>json<|message|>"),
                call.function.arguments,
                Markup("<|call|>"),
            ]
        return pieces

    @staticmethod
    def _shows_thinking(ctx: RenderContext, calls: Sequence[ToolCall]) -> bool:
        """In the answer that ends the conversation, and before calls as long as no answer has followed them.

        An answer that ends an example does not count: it was sampled after the calls and their thinking.
        """
        if not calls:
            return ctx.is_last
        later = ctx.messages[ctx.idx + 1 : -1]
        return not any(m["role"] == "assistant" and not m.get("tool_calls") for m in later)

    # --- parsing -------------------------------------------------------------------------------------

    def parse_response(self, response: list[int]) -> tuple[Message, ParseTermination]:
        before, termination = split_at_stop(response, self._stops)
        if len(before) == len(response):
            return Message(role="assistant", content=self._decode(response)), termination
        return self._parse(before), termination

    def _parse(self, tokens: Sequence[int]) -> Message:
        parts: list[ContentPart] = []
        calls: list[ToolCall | UnparsedToolCall] = []
        tag, unmarked = self.encoder.tag, self.encoder.unmarked
        for segment in self.encoder.marked_text(tokens).split(tag("<|end|>")):
            head, begun, payload = segment.partition(tag("<|message|>"))
            head = unmarked(head).removeprefix("<|start|>assistant")
            if tool := re.search(r"to=functions\.([^\s<]+)", head):
                calls.append(_call(tool.group(1), unmarked(payload), begun, unmarked(segment)))
            elif begun and re.search(r"<\|channel\|>analysis", head):
                parts.append(ThinkingPart(type="thinking", thinking=unmarked(payload)))
            elif text := unmarked(payload if begun else segment):
                parts.append(TextPart(type="text", text=text))
        only_text = all(part["type"] == "text" for part in parts)
        message = Message(
            role="assistant",
            content="".join(part["text"] for part in parts if part["type"] == "text") if only_text else parts,
        )
        if parsed := [call for call in calls if isinstance(call, ToolCall)]:
            message["tool_calls"] = parsed
        if unparsed := [call for call in calls if isinstance(call, UnparsedToolCall)]:
            message["unparsed_tool_calls"] = unparsed
        return message


def _texts(message: Message, kind: str) -> list[str]:
    parts = ensure_list(message["content"])
    for part in parts:
        if part["type"] not in ("text", "thinking"):
            raise RendererError(f"gpt-oss writes text, and the message has {part['type']}")
    return [str(part.get(kind, "")) for part in parts if part["type"] == kind and part.get(kind)]


def _call(name: str, arguments: str, begun: str, segment: str) -> ToolCall | UnparsedToolCall:
    if not begun:
        return UnparsedToolCall(raw_text=segment, error=f"{UNTERMINATED_TOOL_BLOCK_ERROR}: no <|message|>")
    try:
        if not isinstance(json.loads(arguments), dict):
            raise ValueError("the arguments are not a JSON object")
        return tool_call(name, arguments)
    except json.JSONDecodeError as error:
        return UnparsedToolCall(raw_text=segment, error=f"Invalid JSON: {error}")
    except (ValueError, RecursionError) as error:
        return UnparsedToolCall(raw_text=segment, error=str(error))
