"""Killed without warning, script or engine, a run ends with the very weights of one that was left alone."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tinker

from tests.server import Server, running_server
from tests.tinker_cookbook.supervised.numbers import sums
from tests.tinker_cookbook.supervised.pausing_run import STEPS, config
from tinker_cookbook.supervised import train


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("engine")) as running, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINKER_BASE_URL", running.url)
        patch.setenv("TINKER_API_KEY", running.key)
        patch.setenv("TINKER_TELEMETRY", "0")
        yield running


@pytest.fixture(scope="module")
def undisturbed(server, tmp_path_factory) -> list[float]:
    log = tmp_path_factory.mktemp("alone") / "run"
    run_to_the_end(log)
    return outcome(server, log)


def run_to_the_end(log: Path) -> None:
    asyncio.run(train.main(config(str(log))))


def start_and_pause(log: Path, step: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.tinker_cookbook.supervised.pausing_run", str(log), str(step)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    return process


def outcome(server: Server, log: Path) -> list[float]:
    """What the final weights think of some data, to the last bit."""
    records = [json.loads(line) for line in (log / "checkpoints.jsonl").read_text().splitlines()]
    assert records[-1]["final"]
    service = tinker.ServiceClient(base_url=server.url, api_key=server.key)
    client = service.create_training_client_from_state(records[-1]["state_path"])
    result = client.forward(sums()()[0].get_batch(0), "cross_entropy").result()
    return [value for output in result.loss_fn_outputs for value in output["logprobs"].tolist()]


@pytest.mark.long
@pytest.mark.parametrize("step", [7, 12])
def test_a_killed_script_goes_on_exactly(server, undisturbed, tmp_path, step):
    log = tmp_path / "run"
    process = start_and_pause(log, step)
    process.kill()
    process.communicate()
    run_to_the_end(log)
    assert outcome(server, log) == undisturbed
    rows = [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]
    assert {row["step"] for row in rows} == set(range(STEPS))


@pytest.mark.long
def test_a_killed_engine_does_not_disturb_the_script(server, undisturbed, tmp_path):
    log = tmp_path / "run"
    process = start_and_pause(log, 7)
    server.kill()
    server.restart()  # the script has batches under way
    process.communicate("\n", timeout=180)
    assert process.returncode == 0
    assert outcome(server, log) == undisturbed
