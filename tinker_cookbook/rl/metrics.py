"""Figures about the policy: how far it is from the sampler, from its reference and from itself before the update.

The penalty for leaving the reference is here too. Suffixes: `_D` one per datum, `_T` one per token.
"""

from collections.abc import Sequence
from typing import Any

import tinker
import torch

from tinker_cookbook.utils import trace
from tinker_cookbook.utils.concurrency import gather_or_cancel
from tinker_cookbook.utils.misc_utils import safezip

# --- the policy that was sampled from and the one that is trained -------------------------------------------


def compute_kl_sample_train(
    data_D: list[tinker.Datum], training_logprobs_D: list[torch.Tensor]
) -> dict[str, float]:
    """Over the sampled tokens: two estimates of KL(sampler ‖ trainer), and the entropy."""
    sampled, differences = _differences(data_D, training_logprobs_D)
    return {
        "optim/kl_sample_train_v1": float(differences.mean()),
        "optim/kl_sample_train_v2": float(0.5 * differences.square().mean()),
        "optim/entropy": float(-sampled.mean()),
    }


def compute_logprob_gap(
    data_D: list[tinker.Datum], training_logprobs_D: list[torch.Tensor]
) -> dict[str, float]:
    """What sampler and trainer disagree by. On data of the same weights: with updates in between, those are in it."""
    _, differences = _differences(data_D, training_logprobs_D)
    return {
        "optim/logprob_gap_mean": float(differences.abs().mean()),
        "optim/logprob_gap_max": float(differences.abs().max()),
    }


@trace.scope
async def compute_post_kl(
    data_D: list[tinker.Datum], post_sampling_client: tinker.SamplingClient
) -> dict[str, float]:
    """How far the update moved the policy, on the tokens it was made from."""
    new_logprobs_D = await _logprobs(data_D, post_sampling_client)
    _, differences = _differences(data_D, new_logprobs_D)
    return {
        "kl_pre_post_v1": float(differences.mean()),
        "kl_pre_post_v2": float(0.5 * differences.square().mean()),
    }


def _differences(
    data_D: Sequence[tinker.Datum], other_logprobs_D: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of all sampled tokens: their logprobs, and those less the others'."""
    sampled: list[torch.Tensor] = []
    others: list[torch.Tensor] = []
    for datum, other_T in safezip(data_D, other_logprobs_D):
        acted_T = _field(datum, "mask") > 0
        sampled.append(_field(datum, "logprobs")[acted_T])
        others.append(other_T.double()[acted_T])
    joined = torch.cat(sampled)
    assert len(joined), "there is no sampled token among the data"
    return joined, joined - torch.cat(others)


# --- the reference --------------------------------------------------------------------------------------------


@trace.scope
async def incorporate_kl_penalty(
    data_D: list[tinker.Datum],
    base_sampling_client: tinker.SamplingClient,
    kl_penalty_coef: float,
    kl_discount_factor: float,
) -> dict[str, float]:
    """Take from the advantage of each token what it departs from the reference, more than the average token does.

    Centring on the average of the data leaves the mean advantage as it is. With a discount factor, a token also answers
    for the departures that follow it; what was not sampled answers for nothing.
    """
    base_logprobs_D = await _logprobs(data_D, base_sampling_client)
    masks_D = [_field(datum, "mask") for datum in data_D]
    departures_D = [
        (_field(datum, "logprobs") - base_T) * mask_T
        for datum, base_T, mask_T in safezip(data_D, base_logprobs_D, masks_D)
    ]
    return {"kl_policy_base": _penalise(data_D, departures_D, kl_penalty_coef, kl_discount_factor)}


def incorporate_entropy_bonus(data_D: list[tinker.Datum], entropy_coef: float) -> None:
    """Add to the advantage of each token what it is less likely than the average token: a policy that keeps trying."""
    surprises_D = [_field(datum, "logprobs") * _field(datum, "mask") for datum in data_D]
    _penalise(data_D, surprises_D, entropy_coef)


def _penalise(
    data_D: list[tinker.Datum], amounts_D: list[torch.Tensor], coef: float, discount_factor: float = 0.0
) -> float:
    """For what is above the average of all sampled tokens, which is returned."""
    masks_D = [_field(datum, "mask") for datum in data_D]
    average = float(sum(map(torch.sum, amounts_D)) / sum(map(torch.sum, masks_D)))
    for datum, amount_T, mask_T in safezip(data_D, amounts_D, masks_D):
        penalty_T = coef * mask_T * (average - amount_T)
        if discount_factor > 0:
            penalty_T = mask_T * discounted_future_sum_vectorized(penalty_T, discount_factor)
        advantages_T = _field(datum, "advantages") + penalty_T
        datum.loss_fn_inputs["advantages"] = tinker.TensorData.from_torch(advantages_T.float())
    return average


def discounted_future_sum_vectorized(x: torch.Tensor, gamma: float) -> torch.Tensor:
    """y[t] = x[t] + γ·y[t+1]."""
    sums: list[torch.Tensor] = []
    following = torch.zeros((), dtype=x.dtype)
    for value in x.flip(0).unbind():
        following = value + gamma * following
        sums.append(following)
    return torch.stack(sums[::-1]) if sums else x.clone()


async def _logprobs(
    data_D: Sequence[tinker.Datum], sampling_client: tinker.SamplingClient
) -> list[torch.Tensor]:
    """Of the targets of each datum, by the given policy; all datums at once."""
    answers_D = await gather_or_cancel(
        _prompt_logprobs(sampling_client, _full_sequence(datum)) for datum in data_D
    )
    return [
        torch.tensor([0.0 if value is None else value for value in answer[1:]], dtype=torch.float64)
        for answer in answers_D
    ]


async def _prompt_logprobs(
    sampling_client: tinker.SamplingClient, sequence: tinker.ModelInput
) -> list[float | None]:
    return await sampling_client.compute_logprobs_async(sequence)


def _full_sequence(datum: tinker.Datum) -> tinker.ModelInput:
    return datum.model_input.append_int(int(datum.loss_fn_inputs["target_tokens"].data[-1]))


def _field(datum: tinker.Datum, name: str) -> torch.Tensor:
    return datum.loss_fn_inputs[name].to_torch().double()


# --- samplers --------------------------------------------------------------------------------------------------


def compute_sampling_client_metrics(wrapped_trajectory_groups: list[Any]) -> dict[str, Any]:
    """Which weights the groups were sampled from, and how long each took."""
    if not wrapped_trajectory_groups:
        return {}
    steps = [group.sampling_client_step for group in wrapped_trajectory_groups]
    seconds = [
        group.metrics["time/trajectory_group_worker_loop/total"] for group in wrapped_trajectory_groups
    ]
    return _spread("sampling_client/step", steps) | _spread("time/sampling_time", seconds)


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    return {
        f"{name}_max": max(values),
        f"{name}_min": min(values),
        f"{name}_mean": sum(values) / len(values),
    }
