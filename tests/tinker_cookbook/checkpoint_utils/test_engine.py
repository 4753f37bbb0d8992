"""Checkpoints on the real engine: saved, listed, expiring, deleted and resumed from."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest
import tinker
from tinker import types

from tests.server import Server, running_server
from tinker_cookbook.checkpoint_utils import (
    CheckpointManager,
    find_resume_checkpoint,
    get_renderer_name_from_checkpoint_async,
    load_checkpoints_file,
    save_checkpoint_async,
)
from tinker_cookbook.checkpoint_utils.rest import rest_client

MODEL = "tinker-engine/tiny-chat"
TOKENS = [5, 6, 7, 8, 9] * 3
INPUTS = {"target_tokens": TOKENS[1:], "weights": [1.0] * (len(TOKENS) - 1)}
DATUM = types.Datum(model_input=types.ModelInput.from_ints(TOKENS[:-1]), loss_fn_inputs=INPUTS)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("checkpoints")) as server:
        yield server


@pytest.fixture
def service(server: Server) -> tinker.ServiceClient:
    return tinker.ServiceClient(base_url=server.url, api_key=server.key)


async def new_client(service: tinker.ServiceClient) -> tinker.TrainingClient:
    return await service.create_lora_training_client_async(
        MODEL, rank=4, seed=1, user_metadata={"renderer_name": "chatml"}
    )


async def submit(client: tinker.TrainingClient) -> list[tinker.APIFuture]:
    return [
        await client.forward_backward_async([DATUM], "cross_entropy"),
        await client.optim_step_async(types.AdamParams(learning_rate=1e-2)),
    ]


async def train(client: tinker.TrainingClient) -> float:
    results = [await future.result_async() for future in await submit(client)]
    return results[0].metrics["loss:sum"]


async def loss(client: tinker.TrainingClient) -> float:
    future = await client.forward_async([DATUM], "cross_entropy")
    return (await future.result_async()).metrics["loss:sum"]


async def stored(service: tinker.ServiceClient, client: tinker.TrainingClient) -> dict[str, types.Checkpoint]:
    """What the server has of this run, by kind and name."""
    run_id = (await client.get_info_async()).model_id
    listed = await rest_client(service).list_checkpoints_async(run_id)
    return {checkpoint.checkpoint_id: checkpoint for checkpoint in listed.checkpoints}


def days_left(checkpoint: types.Checkpoint) -> float | None:
    if checkpoint.expires_at is None:
        return None
    return (checkpoint.expires_at - datetime.now(UTC)).total_seconds() / 86400


def test_a_run_with_all_kinds_of_checkpoints(service: tinker.ServiceClient, tmp_path: Path) -> None:
    async def play() -> dict[str, types.Checkpoint]:
        client = await new_client(service)
        manager = CheckpointManager(
            client, service, str(tmp_path), save_every=3, rolling_save_every=1, async_periodic_saves=True
        )
        for batch in range(5):
            await manager.maybe_save_async(batch, {"batch": batch})
            await train(client)
        await manager.maybe_save_rolling_async(5, {"batch": 5})
        await manager._settle()
        during = set(await stored(service, client))
        assert during == {"weights/000003", "sampler_weights/000003", "weights/000005"}
        await manager.save_final_async({"batch": 5})
        return await stored(service, client)

    left = asyncio.run(play())
    assert set(left) == {
        "weights/000003",
        "sampler_weights/000003",
        "weights/final",
        "sampler_weights/final",
    }
    assert days_left(left["weights/final"]) is None
    assert days_left(left["weights/000003"]) == pytest.approx(7, abs=0.1)
    names = [record.name for record in load_checkpoints_file(str(tmp_path))]
    assert names == ["000001", "000002", "000003", "000004", "000005", "final"]


def test_a_save_in_the_background_holds_the_weights_of_its_step(
    service: tinker.ServiceClient, tmp_path: Path
) -> None:
    """The loop submits further steps at once, as it does with `submit_ahead`."""

    async def play() -> None:
        client = await new_client(service)
        await train(client)
        before = await loss(client)
        manager = CheckpointManager(client, service, str(tmp_path), save_every=1, async_periodic_saves=True)
        await manager.maybe_save_async(1, {"batch": 1})
        futures = [future for _ in range(3) for future in await submit(client)]
        await manager.finalize_async()
        for future in futures:
            await future.result_async()
        assert await loss(client) != pytest.approx(before, rel=0.01), "the later steps were made"
        (record,) = load_checkpoints_file(str(tmp_path))
        resumed = await service.create_training_client_from_state_with_optimizer_async(
            record.state_path or ""
        )
        assert await loss(resumed) == pytest.approx(before, rel=1e-5)
        sampler = service.create_sampling_client(model_path=record.sampler_path)
        logprobs = await sampler.compute_logprobs_async(types.ModelInput.from_ints(TOKENS))
        assert -sum(value or 0.0 for value in logprobs) == pytest.approx(before, rel=1e-3)

    asyncio.run(play())


def test_resume_falls_back_to_what_the_server_still_has(
    service: tinker.ServiceClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = str(tmp_path)

    async def play() -> None:
        client = await new_client(service)
        for batch in (1, 2):
            await save_checkpoint_async(client, f"{batch:06d}", log, {"batch": batch}, kind="both")
        await save_checkpoint_async(client, "rolling", log, {"batch": 3, "rolling": True}, ttl_seconds=7200)
        newest = await find_resume_checkpoint(log, service)
        assert newest is not None
        assert (newest.name, newest.batch) == ("rolling", 3)
        name = await get_renderer_name_from_checkpoint_async(service, newest.state_path or "")
        assert name == "chatml"

        rest = rest_client(service)
        await rest.delete_checkpoint_from_tinker_path_async(newest.state_path or "")
        older = await find_resume_checkpoint(log, service)
        assert older is not None
        assert (older.name, older.batch) == ("000002", 2)
        assert "rolling" in caplog.text
        await service.create_training_client_from_state_with_optimizer_async(older.state_path or "")

        for record in load_checkpoints_file(log)[:2]:
            await rest.delete_checkpoint_from_tinker_path_async(record.state_path or "")
        assert await find_resume_checkpoint(log, service) is None

    asyncio.run(play())


def test_the_rolling_checkpoint_of_a_crashed_process_is_replaced(
    service: tinker.ServiceClient, tmp_path: Path
) -> None:
    log = str(tmp_path)

    async def play() -> None:
        crashed = await new_client(service)
        manager = CheckpointManager(crashed, service, log, rolling_save_every=1)
        await manager.maybe_save_async(1, {"batch": 1})
        await manager._settle()
        record = await find_resume_checkpoint(log, service)
        assert record is not None
        client = await service.create_training_client_from_state_with_optimizer_async(record.state_path or "")
        resumed = CheckpointManager(client, service, log, rolling_save_every=1)
        assert set(await stored(service, crashed)) == {"weights/000001"}
        await resumed.maybe_save_async(2, {"batch": 2})
        await resumed._settle()
        assert await stored(service, crashed) == {}
        assert set(await stored(service, client)) == {"weights/000002"}

    asyncio.run(play())


def test_blocking_calls(service: tinker.ServiceClient, tmp_path: Path) -> None:
    client = service.create_lora_training_client(MODEL, rank=4)
    manager = CheckpointManager(client, service, str(tmp_path), save_every=2, rolling_save_every=1)
    for batch in range(3):
        manager.maybe_save(batch, {"batch": batch})
    manager.save_final({"batch": 3})
    assert [record.name for record in load_checkpoints_file(str(tmp_path))] == ["000001", "000002", "final"]
