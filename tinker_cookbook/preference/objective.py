"""From datums and their logprobs to a loss and figures: what training and evaluation have in common.

Pairs are neighbours, chosen first. Unpaired datums say themselves whether they are wanted (`IS_DESIRABLE`).
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tinker
import torch

from tinker_cookbook.exceptions import ConfigurationError, DataValidationError
from tinker_cookbook.preference.dpo_datasets import IS_DESIRABLE
from tinker_cookbook.preference.losses import (
    Metrics,
    PreferenceLoss,
    example_metrics,
    get_loss,
    kl_baseline,
    loss_options,
    pair_metrics,
)
from tinker_cookbook.preference.reference import whole_sequence

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scored:
    """Completions with what the policy thinks of them, and the reference if there is one. `_D`: one per datum."""

    data_D: Sequence[tinker.Datum]
    logprobs_D: Sequence[torch.Tensor]  # each per token
    reference_D: Sequence[float] | None

    def sums(self) -> torch.Tensor:
        """In double precision: the margin is a small difference of large sums."""
        return torch.stack(
            [
                logprobs_T.flatten().double() @ _weights(datum)
                for logprobs_T, datum in zip(self.logprobs_D, self.data_D, strict=True)
            ]
        )

    def lengths(self) -> torch.Tensor:
        return torch.stack([_weights(datum).sum() for datum in self.data_D])

    def scores(self, loss: PreferenceLoss) -> torch.Tensor:
        reference = None if self.reference_D is None else torch.tensor(self.reference_D, dtype=torch.float64)
        return loss.scores(self.sums(), reference, self.lengths())


class Objective:
    """A loss by name, with its options."""

    def __init__(self, name: str, beta: float, options: Mapping[str, float]):
        self.name = name
        self.loss = get_loss(name)
        self.beta = beta
        self._options = loss_options(name, beta, options)
        if beta < self.loss.usual_beta / 10:
            logger.warning(
                "dpo_beta=%g is far below what %s is used with: %g", beta, name, self.loss.usual_beta
            )

    def usable(self, data_D: Sequence[tinker.Datum]) -> list[tinker.Datum]:
        """The batch as this loss can take it. A trailing datum without a partner goes, with a warning."""
        is_labeled = [IS_DESIRABLE in datum.loss_fn_inputs for datum in data_D]
        if self.loss.is_paired and any(is_labeled):
            raise ConfigurationError(
                f"the loss {self.name} learns from pairs, and these are single examples: use loss=kto, or a builder of "
                "pairs such as DPODatasetBuilderFromComparisons"
            )
        if not self.loss.is_paired:
            if not all(is_labeled):
                raise ConfigurationError(
                    f"the loss {self.name} learns from single examples, and these do not say whether they are wanted: "
                    "use KTODatasetBuilder (with LabeledExamplesFromComparisons for pairs)"
                )
            return list(data_D)
        if len(data_D) % 2:
            logger.warning("a batch has %d datums: the last one has no partner, and is left out", len(data_D))
        even = len(data_D) // 2 * 2
        if even == 0:
            raise DataValidationError("a batch has no pair")
        return list(data_D[:even])

    def __call__(self, scored: Scored, mismatched: Scored | None = None) -> tuple[torch.Tensor, Metrics]:
        """The mean loss, with its gradient by the logprobs; `mismatched` is for losses without pairs."""
        values, metrics = self._paired(scored) if mismatched is None else self._unpaired(scored, mismatched)
        loss = values.mean()
        return loss, {f"{self.name}_loss": float(loss.detach()), **metrics}

    def _paired(self, scored: Scored) -> tuple[torch.Tensor, Metrics]:
        scores_D = scored.scores(self.loss)
        chosen_P, rejected_P = scores_D[0::2], scores_D[1::2]
        metrics = pair_metrics(chosen_P.detach(), rejected_P.detach(), self.beta)
        wanted_D = torch.arange(len(scores_D)) % 2 == 0
        return self.loss.function(chosen_P, rejected_P, **self._options), metrics | _nll(scored, wanted_D)

    def _unpaired(self, scored: Scored, mismatched: Scored) -> tuple[torch.Tensor, Metrics]:
        scores_D, z = scored.scores(self.loss), kl_baseline(mismatched.scores(self.loss))
        labels = [datum.loss_fn_inputs[IS_DESIRABLE].tolist()[0] for datum in scored.data_D]
        wanted_D = torch.tensor(labels) > 0
        metrics = example_metrics(scores_D.detach(), wanted_D, z, self.beta)
        return self.loss.function(scores_D, wanted_D, z, **self._options), metrics | _nll(scored, wanted_D)


def without_label(data_D: Sequence[tinker.Datum]) -> list[tinker.Datum]:
    """As a server knows datums."""
    kept = ("target_tokens", "weights")
    return [
        tinker.Datum(datum.model_input, {key: datum.loss_fn_inputs[key] for key in kept}) for datum in data_D
    ]


def mismatched_datums(data_D: Sequence[tinker.Datum]) -> list[tinker.Datum]:
    """Each prompt with the completion of the next datum that has another one.

    Cut to the longest of the batch, which the server can take.
    """
    if len(data_D) < 2:
        raise DataValidationError("kto needs at least two examples in a batch, to tell them from each other")
    parts_D = [_Parts.of(datum) for datum in data_D]
    longest = max(len(parts.prompt) + len(parts.completion) for parts in parts_D)
    return [parts.with_completion_of(_other(parts_D, i), longest) for i, parts in enumerate(parts_D)]


@dataclass(frozen=True)
class _Parts:
    prompt: list[int]
    completion: list[int]
    weights: list[float]  # of the completion

    @classmethod
    def of(cls, datum: tinker.Datum) -> "_Parts":
        sequence = whole_sequence(datum)
        if any(not isinstance(chunk, tinker.EncodedTextChunk) for chunk in sequence.chunks):
            raise DataValidationError("kto is for text, and an example has images")
        tokens, weights = sequence.to_ints(), _weights(datum)
        first = int(torch.nonzero(weights)[0])
        return cls(
            tokens[: first + 1], tokens[first + 1 :], weights[first:].tolist()
        )  # for the next token each

    def with_completion_of(self, other: "_Parts", longest: int) -> tinker.Datum:
        room = longest - len(self.prompt)
        tokens = self.prompt + other.completion[:room]
        weights = [0.0] * (len(self.prompt) - 1) + other.weights[:room]
        return tinker.Datum(
            tinker.ModelInput.from_ints(tokens[:-1]),
            {
                "target_tokens": tinker.TensorData(data=tokens[1:], dtype="int64", shape=[len(weights)]),
                "weights": tinker.TensorData(data=weights, dtype="float32", shape=[len(weights)]),
            },
        )


def _other(parts_D: Sequence[_Parts], i: int) -> _Parts:
    following = (parts_D[(i + offset) % len(parts_D)] for offset in range(1, len(parts_D)))
    next_one = parts_D[(i + 1) % len(parts_D)]
    return next((parts for parts in following if parts.prompt != parts_D[i].prompt), next_one)


def _nll(scored: Scored, wanted_D: torch.Tensor) -> Metrics:
    """Per token of the completions that are wanted."""
    if not wanted_D.any():
        return {}
    return {"chosen_nll": float(-(scored.sums().detach()[wanted_D].sum() / scored.lengths()[wanted_D].sum()))}


def _weights(datum: tinker.Datum) -> torch.Tensor:
    return datum.loss_fn_inputs["weights"].to_torch().flatten().double()
