"""What can be measured while a model is trained."""

from collections.abc import Callable

import tinker


class TrainingClientEvaluator:
    """Measures with the weights that are being trained, through the training client: losses on held-out data."""

    async def __call__(self, training_client: tinker.TrainingClient) -> dict[str, float]:
        raise NotImplementedError


class SamplingClientEvaluator:
    """Measures by sampling from a snapshot of the weights: rewards, accuracies, win rates."""

    async def __call__(self, sampling_client: tinker.SamplingClient) -> dict[str, float]:
        raise NotImplementedError


EvaluatorBuilder = Callable[[], TrainingClientEvaluator | SamplingClientEvaluator]
SamplingClientEvaluatorBuilder = Callable[[], SamplingClientEvaluator]
Evaluator = TrainingClientEvaluator | SamplingClientEvaluator
