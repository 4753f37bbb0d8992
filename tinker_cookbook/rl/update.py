"""One update of the policy, as it is submitted: gradients of the data, then optimizer steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tinker
import torch

from tinker_cookbook.utils import trace
from tinker_cookbook.utils.misc_utils import safezip, split_list

Metrics = dict[str, Any]


@dataclass(frozen=True)
class Loss:
    name: str
    options: dict[str, Any] | None = None


class Update:
    """Everything is with the server before any answer is waited for."""

    def __init__(self, training_client: tinker.TrainingClient, loss: Loss, adam: tinker.AdamParams):
        self._client = training_client
        self._loss = loss
        self._adam = adam
        self._gradients: list[tinker.APIFuture[tinker.ForwardBackwardOutput]] = []
        self._steps: list[tinker.APIFuture[tinker.OptimStepResponse]] = []
        self._unapplied = 0  # gradients that no optimizer step has used yet
        self.data_D: list[tinker.Datum] = []
        self.before_first_step = 0  # datums whose gradient is of the weights from before the update

    async def add(self, data_D: Sequence[tinker.Datum]) -> None:
        """Accumulate the gradient of these."""
        if not data_D:
            return
        sent_D = [as_sent(datum, self._loss.name) for datum in data_D]
        gradient = await self._client.forward_backward_async(
            sent_D,
            self._loss.name,  # pyright: ignore[reportArgumentType]  a server may have others
            self._loss.options,
        )
        self._gradients.append(gradient)
        self._unapplied += 1
        self.data_D += data_D

    async def step(self) -> None:
        """An optimizer step on what was added since the last; none if that is nothing."""
        if self._unapplied:
            self.before_first_step = self.before_first_step or len(self.data_D)
            self._steps.append(await self._client.optim_step_async(self._adam))
            self._unapplied = 0

    @property
    def optimizer_steps(self) -> int:
        return len(self._steps)

    async def results(self) -> tuple[list[torch.Tensor], Metrics]:
        """Logprobs of the trainer for all data in the order they were added, and the server's metrics."""
        async with trace.scope_span("train_step"):
            outputs = [await gradient.result_async() for gradient in self._gradients]
            answers = [await step.result_async() for step in self._steps]
        metrics = reduce_metrics([output.metrics for output in outputs])
        if answers:
            metrics |= answers[-1].metrics or {}
        logprobs_D = [each["logprobs"].to_torch() for output in outputs for each in output.loss_fn_outputs]
        return logprobs_D, metrics


def as_sent(datum: tinker.Datum, loss: str) -> tinker.Datum:
    """The mask is for our own figures; servers refuse fields that a loss does not have.

    Without an advantage a token has no part in a loss, but in that of "dro", which also pulls logprobs together: there
    the mask goes along as weights, or the prompt would be learned.
    """
    fields = {name: value for name, value in datum.loss_fn_inputs.items() if name != "mask"}
    if loss == "dro":
        fields["weights"] = datum.loss_fn_inputs["mask"]
    return tinker.Datum(model_input=datum.model_input, loss_fn_inputs=fields)


def reduce_metrics(parts: Sequence[Mapping[str, float]]) -> Metrics:
    """`loss:sum` of several calls is their sum, `logprob_gap:max` their maximum; what has no such suffix, the mean."""
    reduced: Metrics = {}
    for key in dict.fromkeys(key for part in parts for key in part):
        if key.startswith("logprob_gap:"):  # which compute_kl_sample_train gives, for servers that don't
            continue
        values = [part[key] for part in parts if key in part]
        match key.rpartition(":")[2]:
            case "sum":
                value = sum(values)
            case "max":
                value = max(values)
            case "min":
                value = min(values)
            case _:
                value = sum(values) / len(values)
        reduced[f"optim/{key}"] = value
    return reduced


async def train_step(
    data_D: list[tinker.Datum],
    training_client: tinker.TrainingClient,
    learning_rate: float,
    num_substeps: int,
    loss_fn: str,
    loss_fn_config: dict[str, Any] | None = None,
    metrics: dict[str, Any] | None = None,
) -> list[torch.Tensor]:
    """Split the data into runs of neighbours, one optimizer step each; returns the trainer's logprobs."""
    adam = tinker.AdamParams(learning_rate=learning_rate, beta1=0.9, beta2=0.95, eps=1e-8)
    update = Update(training_client, Loss(loss_fn, loss_fn_config), adam)
    await submit_substeps(update, data_D, num_substeps)
    logprobs_D, answered = await update.results()
    if metrics is not None:
        metrics.update(answered)
    return logprobs_D


async def submit_substeps(update: Update, data_D: list[tinker.Datum], num_substeps: int) -> None:
    if not data_D:
        return
    for part_D in split_list(data_D, min(num_substeps, len(data_D))):
        await update.add(part_D)
        await update.step()


# --- samples that are not quite the policy's own ------------------------------------------------------------


@trace.scope
async def apply_importance_weights(
    data_D: Sequence[tinker.Datum], training_client: tinker.TrainingClient, largest: float
) -> tuple[list[tinker.Datum], Metrics]:
    """Weight each sampled token by p(now) / p(when sampled), at most `largest`; p(now) becomes its old probability.

    For samples of weights some updates ago, or of a sampler that computes other probabilities than the trainer: the
    loss then only has to account for the update itself, and single tokens cannot outweigh all others.
    """
    answer = await training_client.forward_async([_scored(datum) for datum in data_D], "cross_entropy")
    outputs_D = (await answer.result_async()).loss_fn_outputs
    weighted_D: list[tinker.Datum] = []
    weights: list[torch.Tensor] = []
    for datum, output in safezip(data_D, outputs_D):
        fields = datum.loss_fn_inputs
        acted_T = fields["mask"].to_torch() > 0
        now_T = output["logprobs"].to_torch().double()
        ratio_T = (now_T - fields["logprobs"].to_torch().double()).exp()
        weight_T = torch.where(acted_T, ratio_T.clamp(max=largest), 0.0)
        advantages_T = fields["advantages"].to_torch().double() * weight_T
        changed = {
            "logprobs": tinker.TensorData.from_torch(torch.where(acted_T, now_T, 0.0).float()),
            "advantages": tinker.TensorData.from_torch(advantages_T.float()),
        }
        weighted_D.append(tinker.Datum(model_input=datum.model_input, loss_fn_inputs={**fields, **changed}))
        weights.append(ratio_T[acted_T])
    ratios = torch.cat(weights)
    return weighted_D, {
        "optim/importance_weight_mean": float(ratios.clamp(max=largest).mean()),
        "optim/importance_weight_max": float(ratios.max()),
        "optim/importance_weights_cut": float((ratios > largest).double().mean()),
    }


def _scored(datum: tinker.Datum) -> tinker.Datum:
    fields = {"target_tokens": datum.loss_fn_inputs["target_tokens"], "weights": datum.loss_fn_inputs["mask"]}
    return tinker.Datum(model_input=datum.model_input, loss_fn_inputs=fields)
