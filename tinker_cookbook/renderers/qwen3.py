"""Qwen3: the hybrid models with and without thinking, and the Instruct-2507 ones, which do not think."""

from typing import ClassVar

from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers.blocks import ThinkTags
from tinker_cookbook.renderers.encoding import Markup, Pieces
from tinker_cookbook.renderers.family import FamilyRenderer
from tinker_cookbook.renderers.messages import Message, ToolSpec
from tinker_cookbook.renderers.renderer import RenderContext
from tinker_cookbook.renderers.tool_formats import JsonToolCalls, json_line, openai_tool
from tinker_cookbook.tokenizer_utils import Tokenizer

TOOLS_BEGIN = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function "
    "signatures within <tools></tools> XML tags:\n<tools>\n"
)
TOOLS_END = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n'
    "</tool_call>"
)


class QwenRenderer(FamilyRenderer):
    """What all Qwen have in common: ChatML, and results of tools that come from the user, several in one message."""

    end = "<|im_end|>"
    structure = ("<|im_start|>",)
    think: ClassVar[ThinkTags | None] = ThinkTags(inner="\n", after="\n\n")

    def header(self, message: Message, ctx: RenderContext) -> Pieces:
        if message["role"] == "tool":
            if _is_tool(ctx.prev_message):
                return ["\n"]
            return [Markup("\n<|im_start|>user\n" if ctx.idx else "<|im_start|>user\n")]
        return [Markup("\n<|im_start|>" if ctx.idx else "<|im_start|>"), message["role"], "\n"]

    def body(self, message: Message, ctx: RenderContext) -> Pieces:
        if message["role"] == "tool":
            return [Markup("<tool_response>\n"), *self.text(message), Markup("\n</tool_response>")]
        return self.text(message)

    def ends(self, message: Message, ctx: RenderContext) -> str:
        return "" if message["role"] == "tool" and _is_tool(ctx.next_message) else self.end

    @property
    def tags(self) -> tuple[str, ...]:
        return (*super().tags, "<tool_response>", "</tool_response>")


class Qwen3Renderer(QwenRenderer):
    """Thinking is shown in the answer to the last question and left out of those before it."""

    tools = JsonToolCalls(before="\n", between="\n", inner="\n")

    def __init__(self, tokenizer: Tokenizer, strip_thinking_from_history: bool = True):
        super().__init__(tokenizer)
        self.strip_thinking_from_history = strip_thinking_from_history

    @property
    def has_extension_property(self) -> bool:
        return not self.strip_thinking_from_history

    def frames(self, ctx: RenderContext, *, thinking: bool) -> bool:
        if not self.strip_thinking_from_history:
            return True
        return ctx.idx > ctx.last_user_index >= 0 and (thinking or ctx.is_last)

    def trim(self, text: str, *, framed: bool) -> str:
        return text.lstrip("\n") if framed else text

    def trim_thinking(self, thinking: str) -> str:
        return thinking.strip("\n")

    def declare_tools(self, tools: list[ToolSpec], system_prompt: str) -> str:
        lines = "\n".join(json_line(openai_tool(tool)) for tool in tools)
        return (f"{system_prompt}\n\n" if system_prompt else "") + TOOLS_BEGIN + lines + TOOLS_END


class Qwen3DisableThinkingRenderer(Qwen3Renderer):
    """The hybrid models, prompted with an empty think block."""

    disables_thinking = True
    prefill = "<think>\n\n</think>\n\n"

    def __init__(self, tokenizer: Tokenizer):
        super().__init__(tokenizer)

    def frames(self, ctx: RenderContext, *, thinking: bool) -> bool:
        if ctx.is_last and ctx.last_user_index < 0:
            raise RendererError(
                "an answer without thinking is an answer to a user, and there is no user message"
            )
        return super().frames(ctx, thinking=thinking)


class Qwen3InstructRenderer(Qwen3Renderer):
    """Instruct-2507: no think blocks. Thinking that a message brings along is written between bare tags."""

    think = ThinkTags()

    def __init__(self, tokenizer: Tokenizer):
        super().__init__(tokenizer, strip_thinking_from_history=False)

    def frames(self, ctx: RenderContext, *, thinking: bool) -> bool:
        return thinking

    def trim(self, text: str, *, framed: bool) -> str:
        return text

    def trim_thinking(self, thinking: str) -> str:
        return thinking


def _is_tool(message: Message | None) -> bool:
    return message is not None and message["role"] == "tool"
