"""How often a judge prefers what the policy answers to what is there already."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tinker

from tinker_cookbook import renderers
from tinker_cookbook.eval.evaluators import SamplingClientEvaluator
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.preference.estimates import mean_and_stderr
from tinker_cookbook.preference.types import Comparison, PreferenceModel
from tinker_cookbook.renderers.messages import Message, get_text_content
from tinker_cookbook.tokenizer_utils import get_tokenizer
from tinker_cookbook.utils import logtree
from tinker_cookbook.utils.concurrency import gather_or_cancel
from tinker_cookbook.utils.logtree_formatters import ConversationFormatter
from tinker_cookbook.utils.seeds import derive_seed

logger = logging.getLogger(__name__)

_SHOWN = 8  # comparisons in the report


@dataclass(frozen=True)
class _Match:
    comparison: Comparison  # as the judge saw it; the policy's answer is B
    score: float  # from 0, the policy lost, to 1
    is_ended: bool


class ComparisonEvaluator(SamplingClientEvaluator):
    """The policy answers the prompts of comparisons, and a judge compares that with their `completion_A`.

    `<name>/win_rate` is from 0 to 1, a tie being one half, with its standard error in `<name>/win_rate_stderr`;
    `<name>/format` is the share of answers that ended as they must. The judge sees text alone, without thinking. With
    `both_ways` it is asked in both orders, for it may favour what it reads first.
    """

    def __init__(
        self,
        preference_model_builder: Callable[[], PreferenceModel],
        comparisons: Sequence[Comparison],
        renderer_name: str,
        model_name_for_tokenizer: str,
        both_ways: bool = True,
        max_tokens: int = 1024,
        content_preprocessor: Callable[[str], str] | None = None,
        *,
        name: str = "comparison",
        temperature: float = 1.0,
        seed: int = 0,
    ):
        """`content_preprocessor` is for what the judge sees of either answer; `seed` for what is sampled."""
        if not comparisons:
            raise ConfigurationError("there are no comparisons to measure a win rate on")
        self.name = name
        self.both_ways = both_ways
        self.comparisons = list(comparisons)
        self._build_judge = preference_model_builder
        self._judge: PreferenceModel | None = None
        self._renderer = renderers.get_renderer(
            renderer_name, get_tokenizer(model_name_for_tokenizer), model_name=model_name_for_tokenizer
        )
        self._max_tokens = max_tokens
        self._preprocess = content_preprocessor
        self._temperature = temperature
        self._seed = seed

    async def __call__(self, sampling_client: tinker.SamplingClient) -> dict[str, float]:
        if self._judge is None:  # building one connects to a server, which must not hold up the loop
            self._judge = await asyncio.to_thread(self._build_judge)
        judge = self._judge
        matches = await gather_or_cancel(
            self._match(sampling_client, judge, number) for number in range(len(self.comparisons))
        )
        self._report(matches)
        win_rate, stderr = mean_and_stderr([match.score for match in matches])
        return {
            f"{self.name}/win_rate": win_rate,
            f"{self.name}/win_rate_stderr": stderr,
            f"{self.name}/format": sum(match.is_ended for match in matches) / len(matches),
        }

    async def _match(
        self, sampling_client: tinker.SamplingClient, judge: PreferenceModel, number: int
    ) -> _Match:
        given = self.comparisons[number]
        answer, is_ended = await self._answer(sampling_client, given.prompt_conversation, number)
        comparison = Comparison(
            given.prompt_conversation,
            [self._as_judged(message) for message in given.completion_A],
            [self._as_judged(answer)],
        )
        if not self.both_ways:
            return _Match(comparison, (await judge(comparison) + 1) / 2, is_ended)
        there, back = await gather_or_cancel([judge(comparison), judge(comparison.swap())])
        return _Match(comparison, (there - back + 2) / 4, is_ended)

    async def _answer(
        self, sampling_client: tinker.SamplingClient, prompt: list[Message], number: int
    ) -> tuple[Message, bool]:
        params = tinker.SamplingParams(
            max_tokens=self._max_tokens,
            temperature=self._temperature,
            seed=derive_seed(self._seed, number),  # the same at every evaluation: less noise between them
            stop=self._renderer.get_stop_sequences(),
        )
        response = await sampling_client.sample_async(
            prompt=self._renderer.build_generation_prompt(prompt), num_samples=1, sampling_params=params
        )
        message, termination = self._renderer.parse_response(response.sequences[0].tokens)
        return message, termination.is_stop_sequence

    def _as_judged(self, message: Message) -> Message:
        text = get_text_content(message)
        return Message(
            role=message["role"], content=text if self._preprocess is None else self._preprocess(text)
        )

    def _report(self, matches: Sequence[_Match]) -> None:
        for number, match in enumerate(matches[:_SHOWN]):
            with logtree.scope_header(f"Comparison {number}: score {match.score:.2f}"):
                comparison = match.comparison
                for title, messages in (
                    ("Prompt", comparison.prompt_conversation),
                    ("There already", comparison.completion_A),
                    ("The policy", comparison.completion_B),
                ):
                    with logtree.scope_header(title):
                        logtree.log_formatter(ConversationFormatter(messages))
