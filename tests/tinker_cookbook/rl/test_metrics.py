"""KL estimates, the penalty and its discount, by hand."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
import tinker
import torch

from tinker_cookbook.rl.metrics import (
    compute_kl_sample_train,
    compute_logprob_gap,
    compute_post_kl,
    compute_sampling_client_metrics,
    discounted_future_sum_vectorized,
    incorporate_entropy_bonus,
    incorporate_kl_penalty,
)


def datum(
    tokens: list[int], logprobs: list[float], mask: list[float], advantage: float = 0.0
) -> tinker.Datum:
    """One target per input; `tokens` has one more than the others."""

    def tensor(values: list[float]) -> tinker.TensorData:
        return tinker.TensorData(data=values, dtype="float32", shape=[len(values)])

    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tinker.TensorData(data=tokens[1:], dtype="int64", shape=[len(tokens) - 1]),
            "logprobs": tensor(logprobs),
            "advantages": tensor([advantage * each for each in mask]),
            "mask": tensor(mask),
        },
    )


def advantages(datum: tinker.Datum) -> list[float]:
    return [float(value) for value in datum.loss_fn_inputs["advantages"].data]


class Reference:
    """The logprob of token t is -t/10."""

    def __init__(self):
        self.asked: list[list[int]] = []

    async def compute_logprobs_async(self, prompt: tinker.ModelInput) -> list[float | None]:
        self.asked.append(prompt.to_ints())
        return [None, *(-token / 10 for token in prompt.to_ints()[1:])]


def reference() -> Any:
    return cast(Any, Reference())


# d = -0.5 - -0.1 = -0.4 and -1.0 - -1.2 = 0.2; what was not sampled does not count
TWO = [
    datum([3, 4, 5], [0.0, -0.5], [0.0, 1.0]),
    datum([3, 6], [-1.0], [1.0]),
]
TRAINER = [torch.tensor([-9.0, -0.1]), torch.tensor([-1.2])]


def test_the_sampler_and_the_trainer():
    assert compute_kl_sample_train(TWO, TRAINER) == pytest.approx(
        {
            "optim/kl_sample_train_v1": -0.1,
            "optim/kl_sample_train_v2": 0.5 * (0.16 + 0.04) / 2,
            "optim/entropy": 0.75,
        },
        rel=1e-5,
    )
    assert compute_logprob_gap(TWO, TRAINER) == pytest.approx(
        {"optim/logprob_gap_mean": 0.3, "optim/logprob_gap_max": 0.4}, rel=1e-5
    )


def test_each_datum_has_its_logprobs():
    with pytest.raises(ValueError, match="zip"):
        compute_kl_sample_train(TWO, TRAINER[:1])
    with pytest.raises(AssertionError, match="no sampled token"):
        compute_kl_sample_train([datum([3, 4], [-1.0], [0.0])], [torch.tensor([-1.0])])


def test_before_and_after_an_update():
    # the new sampler says -0.5 and -0.6: d = 0 and -0.4
    assert asyncio.run(compute_post_kl(TWO, reference())) == pytest.approx(
        {"kl_pre_post_v1": -0.2, "kl_pre_post_v2": 0.5 * 0.16 / 2}, rel=1e-5
    )


def test_the_penalty_is_for_departing_more_than_the_average():
    # the reference says -0.5 and -0.6 for the sampled tokens: they depart by 0.4 and -0.1, 0.15 on average
    data_D = [
        datum([3, 4, 5], [0.0, -0.1], [0.0, 1.0], advantage=1.0),
        datum([3, 6], [-0.7], [1.0], advantage=-1.0),
    ]
    client = reference()
    metrics = asyncio.run(incorporate_kl_penalty(data_D, client, kl_penalty_coef=2.0, kl_discount_factor=0.0))
    assert metrics == pytest.approx({"kl_policy_base": 0.15}, rel=1e-5)
    assert advantages(data_D[0]) == pytest.approx([0.0, 1.0 + 2 * (0.15 - 0.4)])
    assert advantages(data_D[1]) == pytest.approx([-1.0 + 2 * (0.15 + 0.1)])
    assert client.asked == [[3, 4, 5], [3, 6]], "whole sequences"


def test_the_bonus_is_for_what_is_less_likely_than_the_average():
    # logprobs -0.2 and -0.8 of what was sampled, -0.5 on average; that of the prompt counts for nothing
    data_D = [
        datum([3, 4, 5], [-9.0, -0.2], [0.0, 1.0], advantage=1.0),
        datum([3, 6], [-0.8], [1.0], advantage=-1.0),
    ]
    incorporate_entropy_bonus(data_D, 2.0)
    assert advantages(data_D[0]) == pytest.approx([0.0, 1.0 + 2 * (0.2 - 0.5)])
    assert advantages(data_D[1]) == pytest.approx([-1.0 + 2 * (0.8 - 0.5)])


def test_with_a_discount_a_token_answers_for_those_after_it_and_an_observation_for_nothing():
    # departures 0, 0.4, -, 0.2 with the mean 0.2: penalties 0.2, -0.2, -, 0 and, at a half each, sums from the right
    data_D = [datum([3, 1, 5, 4, 6], [-0.1, -0.1, 0.0, -0.4], [1.0, 1.0, 0.0, 1.0])]
    metrics = asyncio.run(incorporate_kl_penalty(data_D, reference(), 1.0, 0.5))
    assert metrics == pytest.approx({"kl_policy_base": 0.2}, rel=1e-5)
    assert advantages(data_D[0]) == pytest.approx([0.2 - 0.1, -0.2, 0.0, 0.0], abs=1e-6)
    data_D = [datum([3, 5, 1, 1], [0.0, -0.5, -0.1], [0.0, 1.0, 1.0])]  # departures -0.4 and 0
    asyncio.run(incorporate_kl_penalty(data_D, reference(), 1.0, 0.5))
    assert advantages(data_D[0]) == pytest.approx([0.0, 0.2 - 0.1, -0.2], abs=1e-6), "the first is no action"


def test_a_reference_that_fails_ends_the_others():
    ended: list[str] = []

    class Fails(Reference):
        async def compute_logprobs_async(self, prompt: tinker.ModelInput) -> list[float | None]:
            if prompt.length == 2:
                raise RuntimeError("no such weights")
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("cancelled")
            raise AssertionError

    with pytest.raises(RuntimeError, match="no such weights"):
        asyncio.run(incorporate_kl_penalty(list(TWO), cast(Any, Fails()), 1.0, 0.0))
    assert ended == ["cancelled"]


@pytest.mark.parametrize(
    ("x", "gamma", "expected"),
    [
        ([1.0, 2.0, 4.0], 0.5, [3.0, 4.0, 4.0]),
        ([1.0, 2.0, 4.0], 1.0, [7.0, 6.0, 4.0]),
        ([1.0, 2.0], 0.0, [1.0, 2.0]),
        ([], 0.5, []),
    ],
)
def test_discounted_sums(x, gamma, expected):
    assert discounted_future_sum_vectorized(torch.tensor(x), gamma).tolist() == expected


def test_which_weights_groups_were_sampled_from():
    def group(step: int, seconds: float) -> Any:
        metrics = {"time/trajectory_group_worker_loop/total": seconds}
        return SimpleNamespace(sampling_client_step=step, metrics=metrics)

    assert compute_sampling_client_metrics([]) == {}
    assert compute_sampling_client_metrics([group(3, 1.0), group(5, 2.0)]) == {
        "sampling_client/step_max": 5,
        "sampling_client/step_min": 3,
        "sampling_client/step_mean": 4.0,
        "time/sampling_time_max": 2.0,
        "time/sampling_time_min": 1.0,
        "time/sampling_time_mean": 1.5,
    }
