"""What the model says, now and then, for a person to read."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import tinker

from tinker_cookbook.eval.evaluators import SamplingClientEvaluator
from tinker_cookbook.renderers import Message, Renderer, format_content_as_string
from tinker_cookbook.supervised.conversation_files import ExampleDatasetBuilder
from tinker_cookbook.supervised.rendering import text_prompt
from tinker_cookbook.supervised.rows import Example
from tinker_cookbook.tokenizer_utils import PlainTextEncoder
from tinker_cookbook.utils import logtree
from tinker_cookbook.utils.logtree_formatters import ConversationFormatter

logger = logging.getLogger(__name__)

_TEXT_PROMPT = 16  # tokens of a plain text, which the model goes on with
_SHOWN = 300  # characters of a prompt or an answer in the log; the report has all


@dataclass
class _Sample:
    prompt: list[Message]
    answer: str
    wanted: str
    tokens: int
    ended: bool


class SampleEvaluator(SamplingClientEvaluator):
    """Answers the prompts of a few examples, and writes them to the log and into the report of the evaluation.

    `<name>/tokens` is the mean length of an answer, `<name>/ended` the share that came to an end by itself.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        renderer: Renderer,
        *,
        name: str = "samples",
        max_tokens: int = 128,
        temperature: float = 0.0,
        max_prompt_tokens: int | None = None,
    ):
        """`max_prompt_tokens`: longer prompts are left out, with a word in the log."""
        self.name = name
        self._renderer = renderer
        self._encode = PlainTextEncoder(renderer.tokenizer)
        self._max_tokens = max_tokens
        self._temperature = temperature
        self._prompts = [self._prompt(example) for example in examples]
        if max_prompt_tokens is not None:
            self._leave_out_longer_than(max_prompt_tokens)

    @classmethod
    def from_builder(
        cls, builder: ExampleDatasetBuilder, count: int, *, max_tokens: int = 128, context: int | None = None
    ) -> "SampleEvaluator":
        """On the first examples that the builder holds out; `context` is what the model can read and write."""
        room = None if context is None else context - max_tokens
        examples = builder.split.held_out(count)
        return cls(examples, builder.renderer, max_tokens=max_tokens, max_prompt_tokens=room)

    async def __call__(self, sampling_client: tinker.SamplingClient) -> dict[str, float]:
        samples = await asyncio.gather(*(self._sample(sampling_client, *prompt) for prompt in self._prompts))
        for sample in samples:
            self._show(sample)
        if not samples:
            return {}
        return {
            f"{self.name}/tokens": sum(sample.tokens for sample in samples) / len(samples),
            f"{self.name}/ended": sum(sample.ended for sample in samples) / len(samples),
        }

    def _prompt(self, example: Example) -> tuple[list[Message], tinker.ModelInput, str]:
        """What is shown of the prompt, the prompt, and the answer of the data."""
        if isinstance(example, str):
            tokens = text_prompt(example, self._renderer.tokenizer, self._encode)[:_TEXT_PROMPT]
            text = self._renderer.tokenizer.decode(tokens)
            return [Message(role="text", content=text)], tinker.ModelInput.from_ints(tokens), example
        answers = [i for i, message in enumerate(example) if message["role"] == "assistant"]
        cut = answers[-1] if answers else len(example)
        wanted = format_content_as_string(example[cut]["content"]) if answers else ""
        return example[:cut], self._renderer.build_generation_prompt(example[:cut]), wanted

    def _leave_out_longer_than(self, limit: int) -> None:
        fitting = [prompt for prompt in self._prompts if prompt[1].length <= limit]
        if len(fitting) < len(self._prompts):
            left_out = len(self._prompts) - len(fitting)
            logger.info("%d prompts longer than %d tokens are not sampled from", left_out, limit)
        self._prompts = fitting

    async def _sample(
        self,
        sampling_client: tinker.SamplingClient,
        shown: list[Message],
        prompt: tinker.ModelInput,
        wanted: str,
    ) -> _Sample:
        params = tinker.SamplingParams(
            max_tokens=self._max_tokens,
            temperature=self._temperature,
            stop=self._renderer.get_stop_sequences(),
        )
        response = await sampling_client.sample_async(prompt=prompt, num_samples=1, sampling_params=params)
        sequence = response.sequences[0]
        message, _ = self._renderer.parse_response(sequence.tokens)
        answer = format_content_as_string(message["content"])
        return _Sample(shown, answer, wanted, len(sequence.tokens), sequence.stop_reason == "stop")

    def _show(self, sample: _Sample) -> None:
        asked = format_content_as_string(sample.prompt[-1]["content"]) if sample.prompt else ""
        logger.info("sample: %s\n  → %s", _short(asked), _short(sample.answer))
        with logtree.scope_details(_short(asked)):
            answered = Message(role="assistant", content=sample.answer)
            logtree.log_formatter(ConversationFormatter([*sample.prompt, answered]))
            logtree.details(sample.wanted, summary="The answer in the data")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
