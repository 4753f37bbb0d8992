"""Qwen3.5 and 3.6: prompts open the think block; calls of tools are XML."""

from typing import Any

from tinker_cookbook.renderers.encoding import Pieces
from tinker_cookbook.renderers.messages import Message, ToolSpec, get_text_content
from tinker_cookbook.renderers.qwen3 import QwenRenderer
from tinker_cookbook.renderers.renderer import RenderContext
from tinker_cookbook.renderers.tool_formats import XmlToolCalls, json_line, json_or_text

TOOLS_BEGIN = "# Tools\n\nYou have access to the following functions:\n\n<tools>\n"
TOOLS_END = (
    "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
    "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
    "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple lines\n"
    "</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n"
    "- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within "
    "<tool_call></tool_call> XML tags\n"
    "- Required parameters MUST be specified\n"
    "- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT "
    "after\n"
    "- If there is no function call available, answer the question like normal with your current knowledge and do not "
    "tell the user about function calls\n</IMPORTANT>"
)


class Qwen3_5Renderer(QwenRenderer):  # noqa: N801  the number is the family's
    tools = XmlToolCalls(before="\n\n", between="\n")
    prefill = "<think>\n"

    @property
    def has_extension_property(self) -> bool:
        return False

    def frames(self, ctx: RenderContext, *, thinking: bool) -> bool:
        return ctx.idx > ctx.last_user_index

    def trim(self, text: str, *, framed: bool) -> str:
        return text.strip()

    def trim_thinking(self, thinking: str) -> str:
        return thinking.strip()

    def text(self, message: Message) -> Pieces:
        super().text(message)  # refuses what is no text
        return super().text({**message, "content": get_text_content(message).strip()})

    def declare_tools(self, tools: list[ToolSpec], system_prompt: str) -> str:
        lines = "\n".join(json_line(dict(tool)) for tool in tools)
        prompt = system_prompt.strip()
        return TOOLS_BEGIN + lines + TOOLS_END + (f"\n\n{prompt}" if prompt else "")

    def to_openai_message(self, message: Message) -> dict[str, Any]:
        """Its template reads arguments as an object; those that are none stay text."""
        plain = super().to_openai_message(message)
        for call in plain.get("tool_calls", []):
            call["function"]["arguments"] = json_or_text(call["function"]["arguments"])
        return plain


class Qwen3_5DisableThinkingRenderer(Qwen3_5Renderer):  # noqa: N801
    disables_thinking = True
    prefill = "<think>\n\n</think>\n\n"
