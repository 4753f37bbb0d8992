"""The loss on data that is not trained on."""

import math
from collections.abc import Sequence

import tinker

from tinker_cookbook.eval.evaluators import TrainingClientEvaluator
from tinker_cookbook.supervised.common import compute_bpb, compute_mean_nll
from tinker_cookbook.supervised.types import SupervisedDataset
from tinker_cookbook.tokenizer_utils import Tokenizer

AT_A_TIME = 256  # datums of one request: enough to be quick, and a training step need not wait long


class NLLEvaluator(TrainingClientEvaluator):
    """`<name>/nll`, and with a tokenizer `<name>/bpb`: bits per byte."""

    def __init__(self, data: list[tinker.Datum], name: str = "test", tokenizer: Tokenizer | None = None):
        self.data = data
        self.name = name
        self.tokenizer = tokenizer

    @classmethod
    def from_dataset(
        cls, dataset: SupervisedDataset, name: str = "test", tokenizer: Tokenizer | None = None
    ) -> "NLLEvaluator":
        data = [datum for i in range(len(dataset)) for datum in dataset.get_batch(i)]
        return cls(data, name, tokenizer)

    async def __call__(self, training_client: tinker.TrainingClient) -> dict[str, float]:
        futures = [
            await training_client.forward_async(self.data[start : start + AT_A_TIME], "cross_entropy")
            for start in range(0, len(self.data), AT_A_TIME)
        ]
        results = [await future.result_async() for future in futures]
        logprobs = [output["logprobs"] for result in results for output in result.loss_fn_outputs]
        weights = self._inputs("weights")
        metrics = {f"{self.name}/nll": compute_mean_nll(logprobs, weights) if logprobs else math.nan}
        if self.tokenizer is not None and all("target_tokens" in d.loss_fn_inputs for d in self.data):
            targets = self._inputs("target_tokens")
            metrics[f"{self.name}/bpb"] = compute_bpb(logprobs, weights, targets, self.tokenizer)
        return metrics

    def _inputs(self, key: str) -> Sequence[tinker.TensorData]:
        return [datum.loss_fn_inputs[key] for datum in self.data]
