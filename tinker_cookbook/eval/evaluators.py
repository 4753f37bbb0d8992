"""What can be measured while a model is trained."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import tinker

if TYPE_CHECKING:
    from tinker_cookbook.stores import TrainingRunStore


class TrainingClientEvaluator:
    """Measures with the weights that are being trained, through the training client: losses on held-out data."""

    async def __call__(self, training_client: tinker.TrainingClient) -> dict[str, float]:
        raise NotImplementedError


class SamplingClientEvaluator:
    """Measures by sampling from a snapshot of the weights: rewards, accuracies, win rates."""

    async def __call__(self, sampling_client: tinker.SamplingClient) -> dict[str, float]:
        raise NotImplementedError


class RecordingEvaluator(SamplingClientEvaluator):
    """One that also writes what it saw into the folder of the run, next to the other files of the step."""

    async def evaluate_step(
        self, sampling_client: tinker.SamplingClient, step: int, label: str, store: "TrainingRunStore"
    ) -> dict[str, float]:
        """`label` is how files of this evaluator are told from those of others."""
        raise NotImplementedError


EvaluatorBuilder = Callable[[], TrainingClientEvaluator | SamplingClientEvaluator]
SamplingClientEvaluatorBuilder = Callable[[], SamplingClientEvaluator]
Evaluator = TrainingClientEvaluator | SamplingClientEvaluator
