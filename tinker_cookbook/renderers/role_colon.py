"""For base models, which know no chat: `User: ...`, `Assistant: ...`, with an empty line between them.

There are no control tokens to keep apart: a text that says "\\n\\nUser:" looks like the next message, and nothing can
be done about that here.
"""

import logging

import tinker

from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers.messages import Message, ParseTermination, ensure_text
from tinker_cookbook.renderers.renderer import RenderContext, RenderedMessage, Renderer

logger = logging.getLogger(__name__)

STOP = "\n\nUser:"


class RoleColonRenderer(Renderer):
    @property
    def has_extension_property(self) -> bool:
        return True

    def get_stop_sequences(self) -> list[str] | list[int]:
        return [STOP]

    @property
    def _bos_tokens(self) -> list[int]:
        bos = getattr(self.tokenizer, "bos_token_id", None)
        return [] if bos is None else [bos]

    def render_message(self, message: Message, ctx: RenderContext) -> RenderedMessage:
        if message.get("tool_calls"):
            raise RendererError("role_colon cannot write calls of tools")
        return RenderedMessage(
            header=self._chunk(f"{message['role'].capitalize()}:"),
            output=[self._chunk(f" {ensure_text(message['content'])}\n\n")],
            stop_overlap=self._chunk("User:") if message["role"] == "assistant" else None,
        )

    def _chunk(self, text: str) -> tinker.EncodedTextChunk:
        return tinker.EncodedTextChunk(tokens=self.encoder.tokens([text]))

    def parse_response(self, response: list[int]) -> tuple[Message, ParseTermination]:
        eos = getattr(self.tokenizer, "eos_token_id", None)
        ended = eos is not None and response[-1:] == [eos]
        text, *after = self._decode(response[:-1] if ended else response).split(STOP)
        message = Message(role="assistant", content=text.removeprefix(" ").removesuffix("\n\n"))
        if len(after) > 1:
            logger.warning("a response holds %r %d times", STOP, len(after))
            return message, ParseTermination.MALFORMED
        if after:
            return message, ParseTermination.MALFORMED if ended else ParseTermination.STOP_SEQUENCE
        return message, ParseTermination.EOS if ended else ParseTermination.MALFORMED
