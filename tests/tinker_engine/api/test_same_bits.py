"""Over HTTP: what is sampled with a seed, and what is trained on, is the same to the bit however busy the engine is."""

import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np
import pytest
import tinker
from tinker import types

from tests.tinker_engine.api.conftest import KEYS
from tinker_engine.model import tiny

TOKENS = random.Random(0).choices(range(20, 250), k=150)
PROMPTS = [
    TOKENS[:1],
    TOKENS[:40],
    TOKENS[:100],
    TOKENS[:100],
    TOKENS,
    [*TOKENS[:70], 1],
    [*TOKENS[:70], 2],
    TOKENS[5:90],
]


@pytest.fixture
def training(shared_server, monkeypatch) -> tinker.TrainingClient:
    """After a step: before the first, an adapter changes nothing."""
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    service = tinker.ServiceClient(base_url=shared_server.url, api_key=KEYS["alice"])
    client = service.create_lora_training_client(tiny.NAME, rank=4, seed=3)
    client.forward_backward(datums(), "cross_entropy")
    client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    return client


def datums() -> list[types.Datum]:
    parts = [TOKENS, TOKENS[:50], TOKENS[30:]]
    return [
        types.Datum(
            types.ModelInput.from_ints(part[:-1]),
            {"target_tokens": part[1:], "weights": [1.0] * (len(part) - 1)},  # pyright: ignore[reportArgumentType]
        )
        for part in parts
    ]


def trained(output: types.ForwardBackwardOutput) -> list[bytes]:
    return [np.asarray(each["logprobs"].data, np.float32).tobytes() for each in output.loss_fn_outputs]


def sampled(response: types.SampleResponse) -> list[tuple[list[int], bytes]]:
    return [(list(s.tokens), np.asarray(s.logprobs, np.float32).tobytes()) for s in response.sequences]


def asker(client: tinker.SamplingClient) -> Callable[[int], Future[types.SampleResponse]]:
    def ask(i: int) -> Future[types.SampleResponse]:
        params = types.SamplingParams(max_tokens=12, seed=i, stop=[])
        return client.sample(types.ModelInput.from_ints(PROMPTS[i]), 1 + 3 * (i % 3 == 2), params)

    return ask


def in_turn(ask: Callable[[int], Future[types.SampleResponse]]) -> Sequence[list[tuple[list[int], bytes]]]:
    return [sampled(ask(i).result()) for i in range(len(PROMPTS))]


def test_one_after_another_and_all_at_once(training: tinker.TrainingClient):
    ask = asker(training.save_weights_and_get_sampling_client())
    alone, quiet = in_turn(ask), trained(training.forward_backward(datums(), "cross_entropy").result())
    # A new snapshot of the same weights: nothing of it is in the cache.
    ask = asker(training.save_weights_and_get_sampling_client())
    order = random.Random(1).sample(range(len(PROMPTS)), len(PROMPTS))
    futures = {i: ask(i) for i in order[:4]}
    busy = training.forward_backward(datums(), "cross_entropy")
    futures |= {i: ask(i) for i in order[4:]}
    assert [sampled(futures[i].result()) for i in range(len(PROMPTS))] == alone
    assert trained(busy.result()) == quiet
    assert in_turn(ask) == alone
