"""How well preferences that are not trained on are told apart."""

from collections.abc import Sequence

import tinker
import torch

from tinker_cookbook.eval.evaluators import TrainingClientEvaluator
from tinker_cookbook.preference.objective import Objective, Scored, mismatched_datums, without_label
from tinker_cookbook.preference.reference import ReferenceLogprobs
from tinker_cookbook.supervised.types import SupervisedDataset

AT_A_TIME = 256  # datums of one request: enough to be quick, and a training step need not wait long


class PreferenceEvaluator(TrainingClientEvaluator):
    """`<name>/accuracy`, `/margin`, `/<loss>_loss`, `/nll` of what is preferred, and rewards: no gradient is made."""

    def __init__(
        self,
        data: Sequence[tinker.Datum],
        objective: Objective,
        reference: ReferenceLogprobs | None,
        name: str = "test",
    ):
        self.data = objective.usable(data)
        self.name = name
        self._objective = objective
        self._reference = reference

    @classmethod
    def from_dataset(
        cls, dataset: SupervisedDataset, objective: Objective, reference: ReferenceLogprobs | None
    ) -> "PreferenceEvaluator":
        data = [datum for i in range(len(dataset)) for datum in objective.usable(dataset.get_batch(i))]
        return cls(data, objective, reference)

    async def __call__(self, training_client: tinker.TrainingClient) -> dict[str, float]:
        scored = await score(training_client, self.data, self._reference)
        mismatched = None
        if not self._objective.loss.is_paired:
            mismatched = await score(training_client, mismatched_datums(self.data), self._reference)
        _, metrics = self._objective(scored, mismatched)
        metrics["nll"] = metrics.pop("chosen_nll", float("nan"))
        return {f"{self.name}/{key}": value for key, value in metrics.items()}


async def score(
    training_client: tinker.TrainingClient,
    data: Sequence[tinker.Datum],
    reference: ReferenceLogprobs | None,
    *,
    keep: bool = True,
) -> Scored:
    """By a forward pass of the policy; `keep` as in ReferenceLogprobs."""
    plain = without_label(data)
    futures = [
        await training_client.forward_async(plain[start : start + AT_A_TIME], "cross_entropy")
        for start in range(0, len(plain), AT_A_TIME)
    ]
    references = None if reference is None else await reference(data, keep=keep)
    results = [await future.result_async() for future in futures]
    logprobs = [output["logprobs"].to_torch() for result in results for output in result.loss_fn_outputs]
    return Scored(data, [torch.as_tensor(each).detach() for each in logprobs], references)
