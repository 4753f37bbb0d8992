"""Llama 3 Instruct. Without the preamble of dates that its template writes: a prompt is the same on every day."""

from tinker_cookbook.renderers.encoding import Markup, Pieces
from tinker_cookbook.renderers.family import FamilyRenderer
from tinker_cookbook.renderers.messages import Message, ensure_text
from tinker_cookbook.renderers.renderer import RenderContext


class Llama3Renderer(FamilyRenderer):
    bos = "<|begin_of_text|>"
    end = "<|eot_id|>"
    structure = ("<|start_header_id|>", "<|end_header_id|>")

    def header(self, message: Message, ctx: RenderContext) -> Pieces:
        return [Markup("<|start_header_id|>"), message["role"], Markup("<|end_header_id|>\n\n")]

    def body(self, message: Message, ctx: RenderContext) -> Pieces:
        return [ensure_text(message["content"]).strip()]

    def answer(self, message: Message, ctx: RenderContext) -> Pieces:
        """Not trimmed, as the template would: an answer is shown again as it was written."""
        return [ensure_text(message["content"]), *self._calls(message, after_text=True)]
