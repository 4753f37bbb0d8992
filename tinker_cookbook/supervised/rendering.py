"""From a conversation, or text, to what is trained on."""

import logging
from dataclasses import dataclass, field
from typing import Any

import tinker
import torch

from tinker_cookbook.exceptions import DataValidationError, RendererError
from tinker_cookbook.renderers import Message, Renderer, TrainOnWhat
from tinker_cookbook.supervised.common import Reduction, datum_from_model_input_weights
from tinker_cookbook.supervised.rows import Example
from tinker_cookbook.tokenizer_utils import PlainTextEncoder, Tokenizer

logger = logging.getLogger(__name__)

Rendered = tuple[tinker.ModelInput, torch.Tensor]

_SPLIT = (TrainOnWhat.LAST_ASSISTANT_TURN, TrainOnWhat.ALL_ASSISTANT_MESSAGES)
"""What may learn several messages of a conversation, each of which can be an example of its own."""


def conversation_to_datum(
    conversation: list[Message],
    renderer: Renderer,
    max_length: int | None,
    train_on_what: TrainOnWhat = TrainOnWhat.ALL_ASSISTANT_MESSAGES,
    reduction: Reduction = "mean",
) -> tinker.Datum:
    """The whole conversation as one example. With "mean" it weighs as much as any other, however long."""
    model_input, weights = renderer.build_supervised_example(conversation, train_on_what=train_on_what)
    return datum_from_model_input_weights(model_input, weights, max_length, reduction)


@dataclass
class Cuts:
    """How much of the data `max_length` took away so far, of what has been rendered."""

    examples: int = 0
    cut_examples: int = 0
    cut_tokens: int = 0
    untrained_examples: int = 0  # cut before the first token that was to be learned
    _reported: int = field(default=0, repr=False)

    def count(self, rendered: Rendered, datum: tinker.Datum, max_length: int | None) -> None:
        self.examples += 1
        length = rendered[0].length
        if max_length is None or length <= max_length:
            return
        self.cut_examples += 1
        self.cut_tokens += length - datum.model_input.length - 1  # the last token is a target only
        self.untrained_examples += not any(datum.loss_fn_inputs["weights"].data)
        if self.cut_examples >= 10 * self._reported:  # the first, and then ever more rarely
            self.report(max_length)

    def report(self, max_length: int | None) -> None:
        """To the log, if there is anything new to say."""
        if self.cut_examples == self._reported:
            return
        self._reported = self.cut_examples
        logger.warning(
            "max_length=%s has cut %d of %d examples so far, by %d tokens; %d of them have nothing left to learn",
            max_length,
            self.cut_examples,
            self.examples,
            self.cut_tokens,
            self.untrained_examples,
        )

    def metrics(self) -> dict[str, float]:
        counts = {name: getattr(self, name) for name in ("examples", "cut_examples", "cut_tokens")}
        return {f"data/{name}": float(value) for name, value in counts.items()}


class ExampleRenderer:
    """Examples to datums, by one renderer, counting what is cut.

    A conversation becomes several datums where the renderer shows past answers otherwise than they were written, and
    more than the last one is to be learned.
    """

    def __init__(
        self,
        renderer: Renderer,
        max_length: int | None,
        train_on_what: TrainOnWhat,
        reduction: Reduction = "mean",
    ):
        self.renderer = renderer
        self.max_length = max_length
        self.train_on_what = train_on_what
        self.reduction: Reduction = reduction
        self.cuts = Cuts()
        self._encode = PlainTextEncoder(renderer.tokenizer)

    def __call__(self, example: Example) -> list[tinker.Datum]:
        return [self._datum(rendered) for rendered in self._rendered(example)]

    def _rendered(self, example: Example) -> list[Rendered]:
        if isinstance(example, str):
            return [self._text(example)]
        if self.train_on_what in _SPLIT and not self.renderer.has_extension_property:
            return self.renderer.build_supervised_examples(example, train_on_what=self.train_on_what)
        return [self.renderer.build_supervised_example(example, train_on_what=self.train_on_what)]

    def _text(self, text: str) -> Rendered:
        """All of it is learned, and that it ends."""
        tokens = text_prompt(text, self.renderer.tokenizer, self._encode)
        end = getattr(self.renderer.tokenizer, "eos_token_id", None)
        tokens += [] if end is None else [end]
        return tinker.ModelInput.from_ints(tokens), torch.ones(len(tokens))

    def _datum(self, rendered: Rendered) -> tinker.Datum:
        datum = datum_from_model_input_weights(*rendered, self.max_length, self.reduction)
        self.cuts.count(rendered, datum, self.max_length)
        return datum

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "_encode"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._encode = PlainTextEncoder(self.renderer.tokenizer)


def text_prompt(text: str, tokenizer: Tokenizer, encode: PlainTextEncoder) -> list[int]:
    """The tokens of a text that is no conversation, after the token that begins one, for models that have it."""
    begin = getattr(tokenizer, "bos_token_id", None)
    marks = tokenizer.encode("") if begin is not None else []
    return [token for token in marks if token == begin] + encode(text)


def render_or_explain(render: ExampleRenderer, example: Example, where: str) -> list[tinker.Datum]:
    """DataValidationError with file and line for an example that this renderer refuses."""
    try:
        return render(example)
    except (RendererError, DataValidationError, NotImplementedError) as error:
        raise DataValidationError(f"{where}: {error}") from error
