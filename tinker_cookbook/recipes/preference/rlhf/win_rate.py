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
    """One win rate for each judge. What the baseline answers is sampled once, at the first evaluation."""

    name = "win_rate"

    def __init__(self, config: "WinRateEvaluatorBuilder", prompts: Sequence[list[Message]]):
        self._config = config
        self._prompts = prompts
        self._evaluators: list[ComparisonEvaluator] = []

    async def __call__(self, sampling_client: tinker.SamplingClient) -> dict[str, float]:
        if not self._evaluators:
            self._evaluators = self._against(await self._baseline_answers())
        found: dict[str, float] = {}
        for evaluator in self._evaluators:
            found |= await evaluator(sampling_client)
        return found

    def _against(self, answers: Sequence[str]) -> list[ComparisonEvaluator]:
        config = self._config
        comparisons = [
            Comparison(prompt, [Message(role="assistant", content=answer)], [])
            for prompt, answer in zip(self._prompts, answers, strict=True)
        ]
        return [
            ComparisonEvaluator(
                judge,
                comparisons,
                config.renderer_name,
                config.model_name,
                max_tokens=config.max_tokens,
                name=name,
            )
            for name, judge in config.judges.items()
        ]

    async def _baseline_answers(self) -> list[str]:
        """From weights to train on, of which a snapshot can be sampled: a user may have kept nothing else."""
        config = self._config
        service_client = await asyncio.to_thread(service.connect, config.base_url)
        training_client = await service_client.create_training_client_from_state_async(config.baseline_path)
        baseline = await training_client.save_weights_and_get_sampling_client_async()
        tokenizer = await asyncio.to_thread(get_tokenizer, config.model_name)
        renderer = get_renderer(config.renderer_name, tokenizer, model_name=config.model_name)
        return await ask(
            baseline,
            renderer,
            self._prompts,
            max_tokens=config.max_tokens,
            temperature=1.0,
            seed=config.seed,
        )


@chz.chz
class WinRateEvaluatorBuilder:
    baseline_path: str = chz.field(
        doc="tinker:// path of weights to train on, whose answers are to be beaten"
    )
    judges: Mapping[str, PreferenceModelBuilder] = chz.field(doc="By the name that their win rate gets")
    comparison_builder: ComparisonDatasetBuilder = chz.field(doc="Whose held-out prompts are answered")
    model_name: str
    renderer_name: str
    max_prompts: int = chz.field(default=128, doc="Held-out prompts at most")
    max_tokens: int = chz.field(default=1024, doc="Of an answer")
    seed: int = chz.field(default=0, doc="Of the baseline's answers")
    base_url: str | None = None

    def __call__(self) -> WinRateEvaluator:
        return WinRateEvaluator(self, held_out_prompts(self.comparison_builder, self.max_prompts))


def held_out_prompts(builder: ComparisonDatasetBuilder, most: int) -> list[list[Message]]:
    _, rows = builder.get_train_and_test_datasets()
    numbers = range(min(most, 0 if rows is None else len(rows)))
    labeled = [builder.example_to_labeled_comparison(rows[number]) for number in numbers if rows is not None]
    prompts = [each.comparison.prompt_conversation for each in labeled if each is not None]
    if not prompts:
        raise ConfigurationError(
            "no comparisons are held out, and the win rate is measured on such: set test_size=100, or eval_every=0"
        )
    return prompts
