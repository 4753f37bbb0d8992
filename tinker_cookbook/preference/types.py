"""Two answers to one prompt, which of them is better, and models that say so."""

import logging
import math
from dataclasses import dataclass
from typing import Literal

import chz
import tinker
import torch
from tinker import types

from tinker_cookbook import renderers
from tinker_cookbook.exceptions import EvalError, RendererError
from tinker_cookbook.service import connect
from tinker_cookbook.tokenizer_utils import Tokenizer, get_tokenizer
from tinker_cookbook.utils.concurrency import gather_or_cancel

logger = logging.getLogger(__name__)

Label = Literal["A", "B", "Tie"]

_SWAPPED: dict[Label, Label] = {"A": "B", "B": "A", "Tie": "Tie"}
_SCORES = {"A": -1.0, "B": 1.0, "Tie": 0.0}


@dataclass
class Comparison:
    """A prompt and two answers to it."""

    prompt_conversation: list[renderers.Message]
    completion_A: list[renderers.Message]
    completion_B: list[renderers.Message]

    def swap(self) -> "Comparison":
        """The same with A and B exchanged."""
        return Comparison(self.prompt_conversation, self.completion_B, self.completion_A)


@dataclass
class LabeledComparison:
    """Two answers, and which one is better."""

    comparison: Comparison
    label: Label  # the better one

    def swap(self) -> "LabeledComparison":
        """The same with A and B exchanged, in the label too."""
        return LabeledComparison(self.comparison.swap(), _SWAPPED[self.label])


@dataclass
class LabeledExample:
    """One answer, and whether it is wanted: what unpaired preference data says."""

    prompt_conversation: list[renderers.Message]
    completion: list[renderers.Message]
    is_desirable: bool


# --- as a judge reads it ----------------------------------------------------------------------------------


class ComparisonRenderer:
    """Comparisons to tokens: the prompt of a judge, and examples to train one on."""

    def build_generation_prompt(self, comparison: Comparison) -> types.ModelInput:
        raise NotImplementedError

    def to_model_input_weights(
        self, labeled_comparison: LabeledComparison
    ) -> tuple[types.ModelInput, torch.Tensor]:
        raise NotImplementedError

    @property
    def tokenizer(self) -> Tokenizer:
        raise NotImplementedError


class ComparisonRendererFromChatRenderer(ComparisonRenderer):
    """The comparison as one conversation, with headings as system messages; the label is the assistant's answer."""

    def __init__(self, convo_renderer: renderers.Renderer):
        self.convo_renderer = convo_renderer

    def build_generation_prompt(self, comparison: Comparison) -> types.ModelInput:
        return self.convo_renderer.build_generation_prompt(_as_conversation(comparison))

    def to_model_input_weights(
        self, labeled_comparison: LabeledComparison
    ) -> tuple[types.ModelInput, torch.Tensor]:
        """Up to the first token of the label, which is the only one to be learned: a judge says no more."""
        label = renderers.Message(role="assistant", content=labeled_comparison.label)
        conversation = [*_as_conversation(labeled_comparison.comparison), label]
        model_input, weights = self.convo_renderer.build_supervised_example(conversation)
        if any(not isinstance(chunk, types.EncodedTextChunk) for chunk in model_input.chunks):
            raise RendererError("comparisons are of text, and this one has images")
        end = int(torch.nonzero(weights == 1.0)[0]) + 1
        return types.ModelInput.from_ints(model_input.to_ints()[:end]), weights[:end]

    @property
    def tokenizer(self) -> Tokenizer:
        return self.convo_renderer.tokenizer


def _as_conversation(comparison: Comparison) -> list[renderers.Message]:
    return [
        *comparison.prompt_conversation,
        _heading("Completion A"),
        *comparison.completion_A,
        _heading("Completion B"),
        *comparison.completion_B,
        _heading("Preference"),
    ]


def _heading(title: str) -> renderers.Message:
    return renderers.Message(role="system", content=f"==== {title} ====")


# --- judges -----------------------------------------------------------------------------------------------


class PreferenceModel:
    """A judge of two answers."""

    async def __call__(self, comparison: Comparison) -> float:
        """From -1, A is better, to +1, B is better."""
        raise NotImplementedError


class PreferenceModelBuilder:
    """A config that makes a judge."""

    def __call__(self) -> PreferenceModel:
        raise NotImplementedError


class PreferenceModelFromChatRenderer(PreferenceModel):
    """A model that was trained to write the label."""

    def __init__(self, convo_renderer: renderers.Renderer, sampling_client: tinker.SamplingClient):
        self.comparison_renderer = ComparisonRendererFromChatRenderer(convo_renderer)
        self.sampling_client = sampling_client

    async def __call__(self, comparison: Comparison) -> float:
        response = await self.sampling_client.sample_async(
            prompt=self.comparison_renderer.build_generation_prompt(comparison),
            num_samples=1,
            sampling_params=types.SamplingParams(temperature=0.0, max_tokens=1),
        )
        said = str(self.comparison_renderer.tokenizer.decode(response.sequences[0].tokens)).strip()
        is_tie = said != "" and "Tie".startswith(said)  # its first token, which is all that was learned of it
        if said not in _SCORES and not is_tie:
            logger.warning("the preference model says %r and not A, B or Tie; taken for a tie", said)
        return _SCORES.get(said, 0.0)


class PreferenceModelFromVerdictLogprob(PreferenceModel):
    """The same model, asked how sure it is: `p(B) - p(A)`, where only A and B count.

    That is Bradley-Terry with the difference of the two logprobs as the difference of the answers' worth. With
    `both_ways` it reads each comparison in both orders and takes the mean of what it says, so that swapping the answers
    turns the score round exactly, whatever place the model favours.
    """

    def __init__(
        self,
        convo_renderer: renderers.Renderer,
        sampling_client: tinker.SamplingClient,
        *,
        both_ways: bool = True,
    ):
        self.comparison_renderer = ComparisonRendererFromChatRenderer(convo_renderer)
        self.sampling_client = sampling_client
        self.both_ways = both_ways

    async def __call__(self, comparison: Comparison) -> float:
        orders = [comparison, comparison.swap()] if self.both_ways else [comparison]
        favour_B, *turned = await gather_or_cancel(self._log_odds(order) for order in orders)
        log_odds = (favour_B - turned[0]) / 2 if turned else favour_B
        return math.tanh(log_odds / 2)  # 2 * sigmoid(log_odds) - 1

    async def _log_odds(self, comparison: Comparison) -> float:
        """Of B against A."""
        for_A, for_B = await gather_or_cancel(
            self._logprob(LabeledComparison(comparison, label)) for label in ("A", "B")
        )
        return for_B - for_A

    async def _logprob(self, verdict: LabeledComparison) -> float:
        model_input, _ = self.comparison_renderer.to_model_input_weights(verdict)  # it ends with the verdict
        logprob = (await self.sampling_client.compute_logprobs_async(model_input))[-1]
        if logprob is None:
            raise EvalError("the server gave no logprob for the verdict of the preference model")
        return logprob


@chz.chz
class PreferenceModelBuilderFromChatRenderer(PreferenceModelBuilder):
    """A judge that was trained to write A, B or Tie, from its weights on a server."""

    renderer_name: str = chz.field(doc="How the judge reads conversations")
    model_name: str = chz.field(doc="Base model of the judge, whose tokenizer is used")
    rm_weights_path: str = chz.field(doc="tinker:// path of the judge's weights for sampling")
    base_url: str | None = chz.field(
        default=None, doc="Server of the Tinker API; None: as `connect` finds it"
    )

    def __call__(self) -> PreferenceModel:
        return PreferenceModelFromChatRenderer(*self._renderer_and_client())

    def _renderer_and_client(self) -> tuple[renderers.Renderer, tinker.SamplingClient]:
        tokenizer = get_tokenizer(self.model_name)
        renderer = renderers.get_renderer(self.renderer_name, tokenizer, model_name=self.model_name)
        return renderer, connect(self.base_url).create_sampling_client(model_path=self.rm_weights_path)


@chz.chz
class PreferenceModelBuilderFromVerdictLogprob(PreferenceModelBuilderFromChatRenderer):
    both_ways: bool = chz.field(
        default=True, doc="Read each comparison in both orders; a tournament that does so itself need not"
    )

    def __call__(self) -> PreferenceModel:
        return PreferenceModelFromVerdictLogprob(*self._renderer_and_client(), both_ways=self.both_ways)
