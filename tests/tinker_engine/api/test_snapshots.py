"""A sampling client has the weights it was made with, for ever, however training goes on. With the real SDK."""

import numpy as np
import pytest
import tinker
from tinker import types

from tests.tinker_engine.api.conftest import KEYS
from tinker_engine.model import tiny

PROMPT = types.ModelInput.from_ints([5, 6, 7, 8])


def answer(client: tinker.SamplingClient, **params) -> tuple[list[int], bytes]:
    settings = types.SamplingParams(max_tokens=16, stop=[], **params)
    (sequence,) = client.sample(PROMPT, 1, settings).result().sequences
    return list(sequence.tokens), np.asarray(sequence.logprobs, np.float32).tobytes()


def answers(client: tinker.SamplingClient) -> list[object]:
    scores = client.compute_logprobs(PROMPT).result()
    return [answer(client, seed=1), answer(client, temperature=0.0), scores]


@pytest.fixture
def service(shared_server, monkeypatch) -> tinker.ServiceClient:
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    return tinker.ServiceClient(base_url=shared_server.url, api_key=KEYS["alice"])


def test_old_snapshots_are_untouched_by_training(service):
    training = service.create_lora_training_client(tiny.NAME, rank=2, seed=3)
    tokens = list(range(20, 60))
    inputs = {"target_tokens": tokens[1:], "weights": [1.0] * 39}
    data = [types.Datum(types.ModelInput.from_ints(tokens[:-1]), inputs)]  # pyright: ignore[reportArgumentType]

    def step():
        training.forward_backward(data, "cross_entropy")
        return training.optim_step(types.AdamParams(learning_rate=1e-2))

    step().result()
    unnamed = training.save_weights_and_get_sampling_client()
    named = service.create_sampling_client(training.save_weights_for_sampler("kept").result().path)
    before = [answers(unnamed), answers(named)]
    assert before[0] == before[1]
    steps = [step() for _ in range(4)]
    during = [answers(unnamed), answers(named)]
    for future in steps:
        future.result()
    newest = training.save_weights_and_get_sampling_client()
    assert [answers(unnamed), answers(named)] == during == before
    assert answers(newest) != before[0]
