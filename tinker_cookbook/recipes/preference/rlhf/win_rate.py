"""How often a policy's answers are preferred to those of the model it started from."""

import asyncio
from collections.abc import Mapping, Sequence

import chz
import tinker

from tinker_cookbook import service
from tinker_cookbook.eval.evaluators import SamplingClientEvaluator
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.preference.comparison_policy_evaluator import ComparisonEvaluator
from tinker_cookbook.preference.preference_datasets import ComparisonDatasetBuilder
from tinker_cookbook.preference.types import Comparison, PreferenceModelBuilder
from tinker_cookbook.recipes.asking import ask
from tinker_cookbook.renderers import Message, get_renderer
from tinker_cookbook.tokenizer_utils import get_tokenizer


class WinRateEvaluator(SamplingClientEvaluator):
    """`win_rate/<judge>` for each judge. What the baseline says is sampled once, at the first evaluation."""

    name = "win_rate"

    def __init__(self, config: "WinRateEvaluatorBuilder", prompts: Sequence[list[Message]]):
        self._config = config
        self._prompts = prompts
        self._evaluators: list[ComparisonEvaluator] | None = None

    async def __call__(self, sampling_client: tinker.SamplingClient) -> dict[str, float]:
        if self._evaluators is None:
            answers = await self._baseline_answers()
            self._evaluators = await asyncio.to_thread(self._make_evaluators, answers)
        found: dict[str, float] = {}
        for evaluator in self._evaluators:
            found |= await evaluator(sampling_client)
        return found
