"""ChatML: the model that comes with the engine, SmolLM2, and others that were given this plain form."""

from tinker_cookbook.renderers.blocks import ThinkTags
from tinker_cookbook.renderers.encoding import Markup, Pieces
from tinker_cookbook.renderers.family import FamilyRenderer
from tinker_cookbook.renderers.messages import Message, ToolSpec
from tinker_cookbook.renderers.renderer import RenderContext
from tinker_cookbook.renderers.tool_formats import JsonToolCalls


class ChatMLRenderer(FamilyRenderer):
    """Nothing of the past is left out, so the prompt of each turn extends the one before it."""

    end = "<|im_end|>"
    structure = ("<|im_start|>",)
    think = ThinkTags()
    tools = JsonToolCalls()

    def header(self, message: Message, ctx: RenderContext) -> Pieces:
        return [Markup("\n<|im_start|>" if ctx.idx else "<|im_start|>"), message["role"], "\n"]

    def declare_tools(self, tools: list[ToolSpec], system_prompt: str) -> str:
        lines = [
            f"- {tool['name']}({', '.join(tool['parameters'].get('properties', {}))}): {tool['description']}"
            for tool in tools
        ]
        return (f"{system_prompt}\n\n" if system_prompt else "") + "\n".join(["Tools:", *lines])


class SmolLM2Renderer(ChatMLRenderer):
    """SmolLM2-Instruct, which is told who it is where the conversation does not say."""

    default_system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
