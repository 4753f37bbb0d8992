"""Scopes on the SDK's clients: all of them, taken off again, and with a real server behind."""

import asyncio
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tinker
from tinker import types

from tests.server import running_server
from tinker_cookbook.utils import trace

CLIENTS = (tinker.TrainingClient, tinker.SamplingClient)


def public_async_methods() -> dict[tuple[type, str], Any]:
    return {
        (client, name): member
        for client in CLIENTS
        for name, member in vars(client).items()
        if not name.startswith("_") and inspect.iscoroutinefunction(inspect.unwrap(member))
    }


@pytest.fixture
def tracing(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "trace" / "events.jsonl"
    trace.trace_init(output_file=str(path))
    yield path
    trace.trace_shutdown()


def test_every_public_async_method_is_wrapped_and_restored(tmp_path: Path):
    before = public_async_methods()
    assert {"forward_backward_async", "save_state_async", "sample_async"} <= {name for _, name in before}
    trace.trace_init(output_file=str(tmp_path / "events.jsonl"))
    during = public_async_methods()
    trace.trace_shutdown()
    assert all(during[key].__wrapped__ is before[key] for key in before)
    assert public_async_methods() == before
    trace.trace_shutdown()  # twice does no harm


def test_starting_again_closes_the_first_file(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    before = public_async_methods()
    for name in ("one", "two"):
        trace.trace_init(flush_interval_sec=1000, output_file=str(tmp_path / name))
        with trace.scope_span_sync(name):
            pass
    trace.trace_shutdown()
    for name in ("one", "two"):
        assert f'"{name}"' in (tmp_path / name).read_text()
    assert '"two"' not in (tmp_path / "one").read_text()
    assert "the trace so far is closed" in caplog.text
    assert public_async_methods() == before


def test_a_method_that_someone_else_replaced_is_left(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    async def mine(self: Any) -> None: ...

    original = tinker.SamplingClient.sample_async
    trace.trace_init(output_file=str(tmp_path / "events.jsonl"))
    tinker.SamplingClient.sample_async = mine  # pyright: ignore[reportAttributeAccessIssue]
    try:
        trace.trace_shutdown()
        assert tinker.SamplingClient.sample_async is mine
        assert "sample_async was replaced" in caplog.text
    finally:
        tinker.SamplingClient.sample_async = original


def test_calls_to_a_server_are_timed(tracing: Path, tmp_path: Path):
    async def train_and_sample(service: tinker.ServiceClient) -> None:
        client = await service.create_lora_training_client_async("tinker-engine/tiny-chat", rank=4)
        tokens = [5, 6, 7, 8, 9]
        inputs: Any = {"target_tokens": tokens[1:], "weights": [1.0] * 4}
        datum = types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)
        await (await client.forward_backward_async([datum], "cross_entropy")).result_async()
        sampler = await client.save_weights_and_get_sampling_client_async()
        prompt = types.ModelInput.from_ints(tokens)
        answer = await sampler.sample_async(prompt, 1, types.SamplingParams(max_tokens=2))
        assert len(answer.sequences) == 1

    with running_server(tmp_path / "server") as server:
        service = tinker.ServiceClient(base_url=server.url, api_key=server.key)
        with trace.trace_iteration(0) as window:
            asyncio.run(train_and_sample(service))
    trace.trace_shutdown()
    expected = {"forward_backward_async", "save_weights_and_get_sampling_client_async", "sample_async"}
    assert {f"time/{name}" for name in expected} <= set(window.get_timing_metrics())
    events = [json.loads(line) for line in tracing.read_text().splitlines()]
    for phase in "BE":
        assert expected | {"iteration"} <= {event["name"] for event in events if event["ph"] == phase}
    assert [
        event["args"]["step"] for event in events if event["name"] == "iteration" and event["ph"] == "E"
    ] == [0]
