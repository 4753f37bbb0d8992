"""What is submitted for an update, and what is made of the answers."""

import asyncio
import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
import tinker

from tests.tinker_cookbook.fake_service import FakeFuture, FakeService
from tests.tinker_cookbook.rl.test_metrics import datum
from tinker_cookbook.rl.update import Loss, Update, apply_importance_weights, as_sent, reduce_metrics


def test_metrics_of_several_calls_are_reduced_by_their_suffix():
    parts = [
        {"loss:sum": 1.0, "ratio:max": 2.0, "ratio:min": 0.5, "clipped:mean": 0.2, "odd": 1.0},
        {"loss:sum": 2.0, "ratio:max": 1.0, "ratio:min": 0.7, "clipped:mean": 0.4, "logprob_gap:max": 9.0},
    ]
    assert reduce_metrics(parts) == pytest.approx(
        {
            "optim/loss:sum": 3.0,
            "optim/ratio:max": 2.0,
            "optim/ratio:min": 0.5,
            "optim/clipped:mean": 0.3,
            "optim/odd": 1.0,
        }
    )
    assert reduce_metrics([]) == {}


def test_the_mask_is_left_out_and_nothing_is_changed():
    whole = datum([3, 4, 5], [0.0, -0.5], [0.0, 1.0])
    assert as_sent(whole, "ppo").loss_fn_inputs.keys() == {"target_tokens", "logprobs", "advantages"}
    assert "mask" in whole.loss_fn_inputs


def test_an_optimizer_step_needs_a_gradient():
    async def main() -> None:
        fake = FakeService()
        client: Any = await fake.create_lora_training_client_async("fake/model")
        update = Update(client, Loss("ppo"), tinker.AdamParams())
        await update.step()
        await update.add([])
        await update.step()
        assert update.optimizer_steps == 0
        assert await update.results() == ([], {})
        await update.add([datum([3, 4], [-1.0], [1.0])])
        await update.add([datum([3, 4, 5], [0.0, -1.0], [0.0, 1.0])])
        await update.step()
        await update.step()
        assert update.optimizer_steps == 1
        logprobs_D, metrics = await update.results()
        assert [len(logprobs_T) for logprobs_T in logprobs_D] == [1, 2]
        assert metrics["optim/loss:sum"] == 2.0
        assert fake.calls[1:] == ["forward_backward 1 datums"] * 2 + ["optim_step 1 datums + 1 datums"]

    asyncio.run(main())


class Trainer:
    """Its logprobs of all targets, one list per datum."""

    def __init__(self, *logprobs_D: list[float]):
        self.logprobs_D = logprobs_D
        self.asked: list[tinker.Datum] = []

    async def forward_async(self, data: list[tinker.Datum], loss_fn: str) -> FakeFuture:
        assert loss_fn == "cross_entropy"
        self.asked = data
        outputs = [
            {"logprobs": tinker.TensorData(data=values, dtype="float32", shape=[len(values)])}
            for values in self.logprobs_D
        ]
        return FakeFuture(SimpleNamespace(loss_fn_outputs=outputs))


def test_importance_weights_by_hand():
    data_D = [
        datum([3, 4, 5, 6], [0.0, -1.0, -2.0], [0.0, 1.0, 1.0], advantage=2.0),
        datum([3, 7], [-1.0], [1.0], advantage=-1.0),
    ]
    # twice and half as likely as when sampled, then ten times; the first token was not sampled
    trainer = Trainer([-5.0, -1 + math.log(2), -2 - math.log(2)], [-1 + math.log(10)])
    weighted_D, metrics = asyncio.run(apply_importance_weights(data_D, cast(Any, trainer), 4.0))
    assert weighted_D[0].loss_fn_inputs["advantages"].data == pytest.approx([0.0, 4.0, 1.0])
    assert weighted_D[1].loss_fn_inputs["advantages"].data == pytest.approx([-4.0]), "cut at 4"
    assert weighted_D[0].loss_fn_inputs["logprobs"].data == pytest.approx(
        [0.0, -1 + math.log(2), -2 - math.log(2)]
    ), "p(now) becomes the old probability"
    assert metrics == pytest.approx(
        {
            "optim/importance_weight_mean": (2 + 0.5 + 4) / 3,
            "optim/importance_weight_max": 10.0,
            "optim/importance_weights_cut": 1 / 3,
        }
    )
    assert data_D[0].loss_fn_inputs["advantages"].data == [0.0, 2.0, 2.0], "the data given stays as it is"
    assert trainer.asked[0].loss_fn_inputs.keys() == {"target_tokens", "weights"}
