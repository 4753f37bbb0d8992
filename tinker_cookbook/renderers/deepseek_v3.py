"""DeepSeek V3 and V3.1: bare role tokens, an end for answers alone."""

import json
from typing import ClassVar

from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers.blocks import ThinkTags
from tinker_cookbook.renderers.encoding import Markup, Pieces
from tinker_cookbook.renderers.family import FamilyRenderer
from tinker_cookbook.renderers.messages import Message, ToolSpec
from tinker_cookbook.renderers.renderer import RenderContext
from tinker_cookbook.renderers.tool_formats import NamedToolCalls
from tinker_cookbook.tokenizer_utils import Tokenizer

TOOL_RULES = (
    "\n\nIMPORTANT: ALWAYS adhere to this exact format for tool use:\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"
    "tool_call_name<｜tool▁sep｜>tool_call_arguments<｜tool▁call▁end｜>{additional_tool_calls}<｜tool▁calls▁end｜>\n\n"
    "Where:\n\n- `tool_call_name` must be an exact match to one of the available tools\n"
    "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema\n"
    "- For multiple tool calls, chain them directly without separators or spaces\n"
)


class DeepSeekV3Renderer(FamilyRenderer):
    bos = "<｜begin▁of▁sentence｜>"
    end = "<｜end▁of▁sentence｜>"
    structure = ("<｜User｜>", "<｜Assistant｜>")
    think = ThinkTags()
    tools = NamedToolCalls(
        open="<｜tool▁call▁begin｜>",
        close="<｜tool▁call▁end｜>",
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        separator="<｜tool▁sep｜>",
    )
    unframed: ClassVar[str] = "</think>"  # stands before an answer without thinking

    def __init__(self, tokenizer: Tokenizer, system_role_as_user: bool = False):
        super().__init__(tokenizer)
        self.system_role_as_user = system_role_as_user

    def header(self, message: Message, ctx: RenderContext) -> Pieces:
        role = message["role"]
        if role == "system" and ctx.idx:
            if not self.system_role_as_user:
                raise RendererError(
                    "DeepSeek takes a system message only at the beginning; system_role_as_user=True makes later ones "
                    "user messages"
                )
            role = "user"
        match role:
            case "system":
                return []
            case "user":
                return [Markup("<｜User｜>")]
            case "tool":
                return [Markup("<｜tool▁output▁begin｜>")]
            case "assistant":
                return self._answer_header(message, ctx)
        raise RendererError(f"DeepSeek knows no role {role!r}: system, user, assistant and tool")

    def _answer_header(self, message: Message, ctx: RenderContext) -> Pieces:
        if ctx.prev_message is not None and ctx.prev_message["role"] in ("tool", "assistant"):
            return []
        return [Markup("<｜Assistant｜>" + self.unframed)]

    def ends(self, message: Message, ctx: RenderContext) -> str:
        if message["role"] == "tool":
            return "<｜tool▁output▁end｜>"
        return self.end if message["role"] == "assistant" else ""

    def declare_tools(self, tools: list[ToolSpec], system_prompt: str) -> str:
        described = "".join(
            f"\n### {tool['name']}\nDescription: {tool['description']}\n\n"
            f"Parameters: {json.dumps(tool['parameters'])}\n"
            for tool in tools
        )
        return (
            f"{system_prompt}\n\n## Tools\nYou have access to the following tools:\n{described}{TOOL_RULES}"
        )


class DeepSeekV3DisableThinkingRenderer(DeepSeekV3Renderer):
    disables_thinking = True

    def frames(self, ctx: RenderContext, *, thinking: bool) -> bool:
        return False


class DeepSeekV3ThinkingRenderer(DeepSeekV3Renderer):
    """Only the answer that ends the conversation is shown with its thinking."""

    prefill = "<think>"

    @property
    def has_extension_property(self) -> bool:
        return False

    def frames(self, ctx: RenderContext, *, thinking: bool) -> bool:
        return ctx.is_last and (thinking or not _after_tool(ctx))

    def prefill_for(self, ctx: RenderContext) -> str:
        return "" if _after_tool(ctx) else self.prefill

    def _answer_header(self, message: Message, ctx: RenderContext) -> Pieces:
        header = super()._answer_header(message, ctx)
        return [Markup("<｜Assistant｜>")] if header and ctx.is_last else header


def _after_tool(ctx: RenderContext) -> bool:
    return ctx.prev_message is not None and ctx.prev_message["role"] == "tool"
