"""DPO computed by the engine in one request, against the same computed here in two."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tinker
import torch

from tests.server import Server, running_server
from tinker_cookbook.preference.server_losses import loss_config, losses_on_server, pair_datums

MODEL = "tinker-engine/tiny-chat"
OPTIONS = {"beta": 0.5, "label_smoothing": 0.1}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("engine")) as running:
        yield running


@pytest.fixture(scope="module")
def service(server: Server) -> tinker.ServiceClient:
    return tinker.ServiceClient(base_url=server.url, api_key=server.key)


def pairs(count: int, prompt: int = 20) -> tuple[list[tinker.Datum], list[float]]:
    generator = np.random.default_rng(0)
    data: list[tinker.Datum] = []
    for _ in range(count):
        start = generator.integers(10, 900, prompt).tolist()
        for _ in range(2):
            tokens = start + generator.integers(10, 900, int(generator.integers(3, 12))).tolist()
            size = len(tokens) - 1
            weights = [float(i >= prompt - 1) for i in range(size)]
            inputs = {
                "target_tokens": tinker.TensorData(data=tokens[1:], dtype="int64", shape=[size]),
                "weights": tinker.TensorData(data=weights, dtype="float32", shape=[size]),
            }
            data.append(tinker.Datum(tinker.ModelInput.from_ints(tokens[:-1]), inputs))
    reference = [-6.0 * sum(datum.loss_fn_inputs["weights"].tolist()) + i for i, datum in enumerate(data)]
    return data, reference


def dpo_at_the_client(reference: list[float]) -> Any:
    def loss_fn(
        data: list[tinker.Datum], logprobs: list[torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, float]]:
        sums = torch.stack(
            [
                lp @ datum.loss_fn_inputs["weights"].to_torch()
                for lp, datum in zip(logprobs, data, strict=True)
            ]
        )
        scores = OPTIONS["beta"] * (sums - torch.tensor(reference))
        odds = torch.sigmoid(scores[0::2] - scores[1::2])
        wrong = OPTIONS["label_smoothing"]
        return -((1 - wrong) * odds.log() + wrong * (1 - odds).log()).mean(), {}

    return loss_fn


def logprobs_of(result: tinker.ForwardBackwardOutput) -> torch.Tensor:
    return torch.cat([output["logprobs"].to_torch() for output in result.loss_fn_outputs])


def after_a_step(client: tinker.TrainingClient, data: list[tinker.Datum]) -> torch.Tensor:
    """With so large an eps a step goes along the gradient, and does not blow up what rounding makes of its zeros."""
    client.optim_step(tinker.AdamParams(learning_rate=1.0, eps=10.0)).result()
    return logprobs_of(client.forward(data, "cross_entropy").result())


def test_the_engine_offers_dpo(service: tinker.ServiceClient) -> None:
    assert asyncio.run(losses_on_server(service)) == {"dpo"}


def test_loss_logprobs_and_the_step_are_those_of_the_custom_route(service: tinker.ServiceClient) -> None:
    data, reference = pairs(4)
    once, twice = (service.create_lora_training_client(MODEL, rank=4, seed=7) for _ in range(2))
    config = loss_config("dpo", OPTIONS, num_pairs=4)
    for _ in range(2):  # the second time with B no longer zero
        one = once.forward_backward(pair_datums(data, reference), "custom", config).result()
        two = twice.forward_backward_custom(data, dpo_at_the_client(reference)).result()
        assert one.metrics["loss:sum"] == pytest.approx(two.metrics["loss:sum"], rel=1e-5)
        torch.testing.assert_close(logprobs_of(one), logprobs_of(two), atol=1e-4, rtol=1e-4)
        moved, expected = after_a_step(once, data), after_a_step(twice, data)
        assert (moved - logprobs_of(one)).abs().max() > 1e-2
        torch.testing.assert_close(moved, expected, atol=1e-4, rtol=1e-4)


def test_bad_requests_say_what_is_wrong_and_block_nothing(service: tinker.ServiceClient) -> None:
    data, reference = pairs(2)
    whole = pair_datums(data, reference)
    client = service.create_lora_training_client(MODEL, rank=4, seed=7)
    config = loss_config("dpo", OPTIONS, num_pairs=2)
    for sent, options, message in (
        (whole[:3], config, "has 3 datums"),
        (data, config, "needs reference_logprobs"),
        (whole, config | {"beta": -1.0}, "beta must not be negative"),
        (whole, config | {"beta": "much"}, "must be a number"),
        (whole, config | {"loss_id": "tinker_engine/ipo"}, "known are: tinker_engine/dpo"),
    ):
        with pytest.raises(tinker.TinkerError, match=message):
            client.forward_backward(sent, "custom", options).result()
    assert client.forward_backward(whole, "custom", config).result().metrics["loss:sum"] > 0


def test_a_step_is_the_same_after_the_compute_process_died(
    server: Server, service: tinker.ServiceClient
) -> None:
    data, reference = pairs(2)
    config = loss_config("dpo", OPTIONS, num_pairs=2)
    calm, killed = (service.create_lora_training_client(MODEL, rank=4, seed=3) for _ in range(2))
    for client in (calm, killed):
        client.forward_backward(pair_datums(data, reference), "custom", config).result()
    expected = after_a_step(calm, data)
    server.kill_compute()
    assert torch.equal(after_a_step(killed, data), expected)


class OtherServer:
    """Answers as a server that knows nothing of losses."""

    @property
    def holder(self) -> "OtherServer":
        return self

    @contextmanager
    def aclient(self, pool: object) -> Iterator[Any]:
        async def get(path: str, cast_to: type) -> dict[str, Any]:
            return {"supported_models": []}

        yield SimpleNamespace(get=get)

    async def execute_with_retries(self, ask: Any) -> Any:
        return await ask()

    async def run_coroutine_threadsafe(self, coroutine: Any) -> Any:
        return await coroutine


@pytest.mark.parametrize("other", [OtherServer(), SimpleNamespace()])
def test_other_servers_offer_none(other: Any) -> None:
    assert asyncio.run(losses_on_server(other)) == frozenset()


def test_the_reference_stands_where_a_weight_is() -> None:
    data, _ = pairs(1)
    half = [0.0, 0.5, 0.5, *[0.0] * (data[0].model_input.length - 3)]
    data[0].loss_fn_inputs["weights"] = tinker.TensorData(data=half, dtype="float32", shape=[len(half)])
    made = pair_datums(data[:1], [-3.0])[0].loss_fn_inputs
    assert made["reference_logprobs"].tolist() == [0.0, -6.0, *[0.0] * (len(half) - 2)]
