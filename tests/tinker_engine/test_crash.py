"""kill -9 at random moments, while a client that knows nothing of it trains and samples through the real SDK."""

import os
import random
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pytest
import tinker
from tinker import types

from tests.server import Server, running_server

pytestmark = pytest.mark.long

MODEL = "tinker-engine/tiny-chat"
KILLS = int(os.environ.get("CRASH_KILLS", "6"))  # `make test-crash` asks for twenty
WHOLE_ENGINE = 4  # every fourth kill takes the api process as well


@dataclass
class Training:
    """What a client saw, step by step."""

    logprobs: list[bytes] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    samples: list[list[int]] = field(default_factory=list)
    saved: list[str] = field(default_factory=list)


def batch(step: int) -> list[types.Datum]:
    rng = np.random.default_rng(step)
    data: list[types.Datum] = []
    for _ in range(12):
        tokens = rng.integers(5, 1000, size=rng.integers(40, 200))
        data.append(
            types.Datum(
                model_input=types.ModelInput.from_ints(tokens[:-1].tolist()),
                loss_fn_inputs={
                    "target_tokens": types.TensorData(data=tokens[1:].tolist(), dtype="int64"),
                    "weights": types.TensorData(data=[1.0] * (len(tokens) - 1), dtype="float32"),
                },
            )
        )
    return data


def train(server: Server, seen: Training, go_on: Iterator[bool], progress: threading.Semaphore) -> Training:
    """Two gradients per step, a snapshot sampled every third, a checkpoint every fifth; all sent ahead."""
    service = tinker.ServiceClient(base_url=server.url, api_key=server.key)
    client = service.create_lora_training_client(MODEL, rank=4, seed=7)
    step = 0
    while next(go_on):
        gradients = [client.forward_backward(batch(2 * step + i), "cross_entropy") for i in range(2)]
        stepped = client.optim_step(types.AdamParams(learning_rate=3e-3))
        for gradient in gradients:
            outputs = gradient.result().loss_fn_outputs
            seen.logprobs += [np.asarray(output["logprobs"].data, np.float32).tobytes() for output in outputs]
        metrics = stepped.result().metrics
        assert metrics is not None
        seen.norms.append(metrics["grad_norm:mean"])
        if step % 3 == 2:
            sampler = client.save_weights_and_get_sampling_client()
            params = types.SamplingParams(max_tokens=12, seed=step, temperature=0.0)
            answer = sampler.sample(types.ModelInput.from_ints([5, 6, 7]), 1, params).result()
            seen.samples.append(list(answer.sequences[0].tokens))
        if step % 5 == 4:
            seen.saved.append(client.save_state(f"step-{step}").result().path)
        step += 1
        progress.release()
    return seen


def until(stop: threading.Event) -> Iterator[bool]:
    while True:
        yield not stop.is_set()


def times(steps: int) -> Iterator[bool]:
    yield from [True] * steps
    yield False


@pytest.mark.timeout(900)
def test_training_survives_kills_at_random_moments(tmp_path, monkeypatch):
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    rng = random.Random(os.environ.get("CRASH_SEED", "20"))
    stop, progress, disturbed = threading.Event(), threading.Semaphore(0), Training()
    with running_server(tmp_path) as server, ThreadPoolExecutor(1) as pool:
        running: Future[Training] = pool.submit(train, server, disturbed, until(stop), progress)
        try:
            for number in range(KILLS):
                wait_for_a_moment(progress, running, rng)
                if number % WHOLE_ENGINE == WHOLE_ENGINE - 1:
                    server.kill()
                    server.restart()
                else:
                    server.kill_compute()
        finally:
            stop.set()
        running.result(timeout=300)
        steps = len(disturbed.norms)
        assert server.health()["restarts"] >= 0
        undisturbed = train(server, Training(), times(steps), threading.Semaphore(0))
        for path in disturbed.saved:
            assert tinker.RestClient(base_url=server.url, api_key=server.key).get_weights_info_by_tinker_path(
                path
            )
            resumed = tinker.ServiceClient(base_url=server.url, api_key=server.key)
            resumed.create_training_client_from_state_with_optimizer(path)
    assert steps >= KILLS / 2
    assert disturbed.logprobs == undisturbed.logprobs
    assert disturbed.norms == undisturbed.norms
    assert disturbed.samples == undisturbed.samples


def wait_for_a_moment(progress: threading.Semaphore, running: Future[Training], rng: random.Random) -> None:
    """Some step, then some way into the next: kills must fall into the midst of things, not between them."""
    if rng.random() < 0.7:
        assert progress.acquire(timeout=120), "the client makes no progress"
    if running.done():
        running.result()
    threading.Event().wait(rng.uniform(0, 0.6))
