"""What every renderer can do, given how it renders one message and parses one response.

A generation prompt is the conversation so far and the head of the message that is to come. A supervised example is
the whole conversation, with a weight for every token.
"""

import logging
import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tinker
import torch

from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers import supervised
from tinker_cookbook.renderers.encoding import Encoder, Markup, decode_exactly, text_chunk
from tinker_cookbook.renderers.messages import (
    Message,
    ParseTermination,
    Role,
    ToolSpec,
    TrainOnWhat,
    ensure_list,
    get_text_content,
    has_thinking,
)
from tinker_cookbook.renderers.streaming import MessageDelta
from tinker_cookbook.tokenizer_utils import Tokenizer

logger = logging.getLogger(__name__)


@dataclass
class RenderContext:
    """Where in its conversation a message stands."""

    idx: int
    is_last: bool
    prev_message: Message | None = None
    next_message: Message | None = None
    last_user_index: int = -1
    in_last_assistant_turn: bool = False
    messages: Sequence[Message] = ()  # the conversation; of a prompt, without the answer that is to come


@dataclass(frozen=True)
class RenderedMessage:
    """`header` is what the writer of the message finds there already, `output` what it writes, up to its end."""

    output: list[tinker.ModelInputChunk]
    header: tinker.EncodedTextChunk | None = None
    stop_overlap: tinker.EncodedTextChunk | None = (
        None  # beginning of the next message, if that is what stops this
    )


class Renderer(ABC):
    """Messages to tokens and back, for one family of models.

    To write one by hand, implement `get_stop_sequences`, `render_message` and `parse_response`; most families are
    better stated as a `FamilyRenderer`.
    """

    tokenizer: Tokenizer
    disables_thinking = False
    supports_streaming = False

    # How it can be made again in another process; `get_renderer` fills them in.
    _renderer_name: str | None = None
    _model_name: str | None = None
    _has_image_processor = False

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.encoder = Encoder(tokenizer)

    @property
    def has_extension_property(self) -> bool:
        """Whether the prompt of each turn begins with all tokens of the turns before it."""
        return False

    @abstractmethod
    def get_stop_sequences(self) -> list[str] | list[int]:
        """Where sampling ends: strings, or token ids."""

    @abstractmethod
    def render_message(self, message: Message, ctx: RenderContext) -> RenderedMessage:
        """The tokens of one message, given where it stands."""

    @abstractmethod
    def parse_response(self, response: list[int]) -> tuple[Message, ParseTermination]:
        """The message as far as it can be read, always; and how it ended."""

    def parse_response_streaming(self, response: list[int]) -> Iterator[MessageDelta]:
        raise NotImplementedError(f"{type(self).__name__} does not stream")

    def create_conversation_prefix_with_tools(
        self, tools: list[ToolSpec], system_prompt: str = ""
    ) -> list[Message]:
        """The messages that tell the model of its tools, as its family does it."""
        raise NotImplementedError(f"{type(self).__name__} knows no tools")

    def to_openai_message(self, message: Message) -> dict[str, Any]:
        """For chat templates and OpenAI clients: thinking as `reasoning_content`."""
        plain: dict[str, Any] = {"role": message["role"], "content": get_text_content(message)}
        parts = ensure_list(message["content"])
        thinking = "".join(part["thinking"] for part in parts if part["type"] == "thinking")
        if thinking:
            plain["reasoning_content"] = thinking
        if calls := message.get("tool_calls"):
            plain["tool_calls"] = [call.model_dump(exclude_none=True) for call in calls]
        return plain | {key: value for key, value in message.items() if key in ("tool_call_id", "name")}

    # --- prompts -------------------------------------------------------------------------------------

    def build_generation_prompt(
        self, messages: list[Message], role: Role = "assistant", prefill: str | None = None
    ) -> tinker.ModelInput:
        """`prefill` is the beginning of the answer, put in the model's mouth; control tokens in it are meant."""
        conversation = self._conversation(messages)
        to_come = Message(role=role, content="")
        chunks = self._bos()
        contexts = _contexts([*conversation, to_come], conversation)
        for message, ctx in zip(conversation, contexts, strict=False):
            chunks += _chunks_of(self.render_message(message, ctx))
        chunks += text_chunk(self._get_generation_suffix(role, contexts[-1]))
        if prefill:
            chunks += self.encoder.chunks([Markup(prefill)])
        return tinker.ModelInput(chunks=chunks)

    # --- examples ------------------------------------------------------------------------------------

    def build_supervised_example(
        self,
        messages: list[Message],
        train_on_what: TrainOnWhat = TrainOnWhat.LAST_ASSISTANT_MESSAGE,
    ) -> tuple[tinker.ModelInput, torch.Tensor]:
        """All tokens of the conversation, and a weight for each (float32)."""
        what = TrainOnWhat(train_on_what)
        conversation = self._conversation(messages)
        supervised.check_trainable(conversation, what)
        if supervised.trains_on_the_past(conversation, what) and not self.has_extension_property:
            logger.warning(
                "%s shows a past answer otherwise than it was written, so training on several assistant messages in "
                "one example trains on prompts that never occur; build_supervised_examples makes one example per "
                "answer",
                type(self).__name__,
            )
        chunks: list[tinker.ModelInputChunk] = []
        weights: list[float] = []

        def add(new: Sequence[tinker.ModelInputChunk], weight: float) -> None:
            chunks.extend(new)
            weights.extend([weight] * sum(chunk.length for chunk in new))

        add(self._bos(), 0.0)
        for i, (message, ctx) in enumerate(
            zip(conversation, _contexts(conversation, conversation), strict=True)
        ):
            rendered = self.render_message(message, ctx)
            trained = supervised.output_is_trained(conversation, i, what)
            add(_header_of(rendered), float(what is TrainOnWhat.ALL_TOKENS))
            add(_nonempty(rendered.output), float(trained))
            if ctx.is_last and rendered.stop_overlap is not None:
                add(_nonempty([rendered.stop_overlap]), float(trained))
        model_input = tinker.ModelInput(chunks=chunks)
        self._withhold_prompt(model_input, weights, conversation, what)
        return model_input, torch.tensor(weights, dtype=torch.float32)

    def build_supervised_examples(
        self,
        messages: list[Message],
        train_on_what: TrainOnWhat = TrainOnWhat.LAST_ASSISTANT_TURN,
    ) -> list[tuple[tinker.ModelInput, torch.Tensor]]:
        """One example if past answers are shown as they were written; else one for each trained answer."""
        what = TrainOnWhat(train_on_what)
        if self.has_extension_property:
            return [self.build_supervised_example(messages, what)]
        if what not in supervised.SPLITTABLE:
            raise NotImplementedError(
                f"{what} cannot be split into examples, and {type(self).__name__} shows past answers otherwise than "
                f"they were written; use one of {', '.join(supervised.SPLITTABLE)}"
            )
        trained = [i for i in range(len(messages)) if supervised.output_is_trained(messages, i, what)]
        last = TrainOnWhat.LAST_ASSISTANT_MESSAGE
        return [self.build_supervised_example(messages[: i + 1], last) for i in trained]

    def _withhold_prompt(
        self, example: tinker.ModelInput, weights: list[float], conversation: list[Message], what: TrainOnWhat
    ) -> None:
        """What sampling would have been given (an opened think block, say) is not learned."""
        first = supervised.first_produced_index(conversation, what)
        if first is None or not _is_text(example):
            return
        prompt = self.build_generation_prompt(conversation[:first]).to_ints()
        if example.to_ints()[: len(prompt)] == prompt:
            weights[: len(prompt)] = [0.0] * len(prompt)
        elif self.disables_thinking and (
            first == len(conversation) - 1 or any(has_thinking(m["content"]) for m in conversation[first:])
        ):
            raise RendererError(
                f"{type(self).__name__} prompts for answers without thinking, and this one was not given to such a "
                "prompt: take its thinking out, or use the renderer that thinks"
            )

    # --- for subclasses ------------------------------------------------------------------------------

    def _conversation(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with what the family adds by itself. Applied to its own result it must change nothing."""
        return list(messages)

    def _bos(self) -> list[tinker.ModelInputChunk]:
        return text_chunk(self._bos_tokens)

    @property
    def _bos_tokens(self) -> list[int]:
        return []

    def _get_generation_suffix(self, role: Role, ctx: RenderContext) -> list[int]:
        header = self.render_message(Message(role=role, content=""), ctx).header
        return list(header.tokens) if header is not None else []

    def _decode(self, tokens: Sequence[int]) -> str:
        return decode_exactly(self.tokenizer, tokens)

    # --- pickling ------------------------------------------------------------------------------------

    def __reduce__(self) -> Any:
        if self._renderer_name is None or self._model_name is None:
            raise pickle.PicklingError(
                f"this {type(self).__name__} was made by hand; one that is to be pickled comes from "
                "get_renderer(name, tokenizer, model_name=...)"
            )
        from tinker_cookbook.renderers.registry import rebuild

        return rebuild, (self._renderer_name, self._model_name, self._has_image_processor)


def with_inserted_system(messages: Sequence[Message], content: str, at: int = 0) -> list[Message]:
    """For families that have something to say first. It is never trained on."""
    system = Message(role="system", content=content)
    if any("trainable" in message for message in messages):
        system["trainable"] = False
    return [*messages[:at], system, *messages[at:]]


def _contexts(messages: Sequence[Message], conversation: Sequence[Message]) -> list[RenderContext]:
    last_user = supervised.last_user_index(messages)
    last = len(messages) - 1
    return [
        RenderContext(
            idx=i,
            is_last=i == last,
            prev_message=messages[i - 1] if i else None,
            next_message=messages[i + 1] if i < last else None,
            last_user_index=last_user,
            in_last_assistant_turn=message["role"] == "assistant" and i > last_user,
            messages=conversation,
        )
        for i, message in enumerate(messages)
    ]


def _chunks_of(rendered: RenderedMessage) -> list[tinker.ModelInputChunk]:
    return [*_header_of(rendered), *_nonempty(rendered.output)]


def _header_of(rendered: RenderedMessage) -> list[tinker.ModelInputChunk]:
    return _nonempty([rendered.header]) if rendered.header is not None else []


def _nonempty(chunks: Sequence[tinker.ModelInputChunk]) -> list[tinker.ModelInputChunk]:
    return [c for c in chunks if not isinstance(c, tinker.EncodedTextChunk) or len(c.tokens)]


def _is_text(model_input: tinker.ModelInput) -> bool:
    return all(isinstance(chunk, tinker.EncodedTextChunk) for chunk in model_input.chunks)
