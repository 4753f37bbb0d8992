"""How well a judge judges: its accuracy on comparisons it was not trained on, while it is trained."""

from collections.abc import Callable, Sequence
from typing import Literal

import chz
import tinker

from tinker_cookbook import renderers
from tinker_cookbook.eval.evaluators import SamplingClientEvaluator
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.preference.estimates import mean_and_stderr
from tinker_cookbook.preference.preference_datasets import ComparisonDatasetBuilder
from tinker_cookbook.preference.types import (
    LabeledComparison,
    PreferenceModel,
    PreferenceModelFromChatRenderer,
    PreferenceModelFromVerdictLogprob,
)
from tinker_cookbook.tokenizer_utils import get_tokenizer
from tinker_cookbook.utils.concurrency import gather_or_cancel

JudgeOf = Callable[[tinker.SamplingClient], PreferenceModel]


class JudgeEvaluator(SamplingClientEvaluator):
    """Asks the judge about each comparison in both orders.

    Of comparisons with a winner: `<name>/accuracy` is the share of verdicts that name it, one that names neither being
    wrong; `<name>/accuracy_stderr` its standard error; `<name>/says_A` the share of verdicts for what is read first,
    0.5 for a judge that does not care; `<name>/consistent` the share whose winner is the same in both orders. Of ties:
    `<name>/tie_score`, the mean distance of the scores from 0.
    """

    def __init__(self, comparisons: Sequence[LabeledComparison], judge_of: JudgeOf, *, name: str = "judge"):
        """`judge_of` makes the judge from a client of the weights that are being trained."""
        if not comparisons:
            raise ConfigurationError("there are no comparisons to measure a judge on")
        self.name = name
        self._decided = [labeled for labeled in comparisons if labeled.label != "Tie"]
        self._ties = [labeled for labeled in comparisons if labeled.label == "Tie"]
        self._judge_of = judge_of

    async def __call__(self, sampling_client: tinker.SamplingClient) -> dict[str, float]:
        judge = self._judge_of(sampling_client)
        asked = [*self._decided, *self._ties]
        scores = await gather_or_cancel(_both_orders(judge, labeled) for labeled in asked)
        decided, tied = scores[: len(self._decided)], scores[len(self._decided) :]
        metrics = self._of_decided(decided) if decided else {}
        if tied:
            metrics["tie_score"], _ = mean_and_stderr([abs(score) for pair in tied for score in pair])
        return {f"{self.name}/{key}": value for key, value in metrics.items()}

    def _of_decided(self, scores: Sequence[tuple[float, float]]) -> dict[str, float]:
        # Turned so that a positive score is right: the winner is B in one of the two orders, and A in the other.
        signs = [1 if labeled.label == "B" else -1 for labeled in self._decided]
        right = [
            (sign * there > 0, sign * back < 0) for sign, (there, back) in zip(signs, scores, strict=True)
        ]
        # Both orders of a comparison go together: as one measurement, lest the error look smaller than it is.
        accuracy, stderr = mean_and_stderr([sum(pair) / 2 for pair in right])
        for_A = [0.5 if score == 0 else float(score < 0) for pair in scores for score in pair]
        return {
            "accuracy": accuracy,
            "accuracy_stderr": stderr,
            "says_A": mean_and_stderr(for_A)[0],
            "consistent": mean_and_stderr([float(there * back < 0) for there, back in scores])[0],
        }


async def _both_orders(judge: PreferenceModel, labeled: LabeledComparison) -> tuple[float, float]:
    there, back = await gather_or_cancel([judge(labeled.comparison), judge(labeled.comparison.swap())])
    return there, back


@chz.chz
class JudgeEvaluatorBuilder:
    """For `evaluator_builders` of `supervised.train`: on the comparisons that the data holds out."""

    comparison_builder: ComparisonDatasetBuilder = chz.field(doc="Whose test set is used")
    model_name: str = chz.field(doc="Base model of the judge, whose tokenizer is used")
    renderer_name: str = chz.field(doc="How the judge reads conversations")
    verdict: Literal["says", "logprob"] = chz.field(
        default="says", doc="says: what it would write; logprob: which of A and B is likelier, never a tie"
    )
    max_comparisons: int | None = chz.field(default=None, doc="The first so many of them; None: all")
    name: str = chz.field(default="judge", doc="Of its metrics")

    def __call__(self) -> JudgeEvaluator:
        _, test = self.comparison_builder.get_labeled_comparisons()
        if not test:
            raise ConfigurationError("no comparisons are held out to measure the judge on; give a test_size")
        renderer = renderers.get_renderer(
            self.renderer_name, get_tokenizer(self.model_name), model_name=self.model_name
        )

        def judge_of(sampling_client: tinker.SamplingClient) -> PreferenceModel:
            if self.verdict == "says":
                return PreferenceModelFromChatRenderer(renderer, sampling_client)
            return PreferenceModelFromVerdictLogprob(renderer, sampling_client, both_ways=False)

        return JudgeEvaluator(test[: self.max_comparisons], judge_of, name=self.name)
