"""A run on the real engine: Ctrl-C and the same command again end with the very numbers of a run left alone."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server import running_server

SCRIPT = """
import asyncio, json, signal, sys
import numpy as np
import tinker
from tinker import types
from tinker_cookbook.run_config import RunConfig
from tinker_cookbook.training_run import training_run
from tinker_cookbook.utils import trace

STEPS = 12
signal.signal(signal.SIGINT, signal.default_int_handler)  # where the tests run in the background it is ignored

def datum(step):
    tokens = np.random.default_rng(step).integers(10, 900, 17).tolist()
    inputs = {"target_tokens": types.TensorData(data=tokens[1:], dtype="int64"),
              "weights": types.TensorData(data=[1.0] * 16, dtype="float32")}
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)

async def main(log_path):
    config = RunConfig(log_path=log_path, model_name="tinker-engine/tiny-chat", recipe_name="test", lora_rank=4,
                       save_every=5, rolling_save_every=2)
    async with training_run(config) as run:
        run.begin(STEPS, headline="loss")
        for step in run.steps:
            with trace.trace_iteration(step) as window:
                metrics = await run.before_step(step, {"batch": step})
                loss = await run.training_client.forward_backward_async([datum(step)], "cross_entropy")
                done = await run.training_client.optim_step_async(types.AdamParams(learning_rate=1e-2))
                run.submitted(step, {"batch": step + 1}, tokens=16)
                metrics["loss"] = (await loss.result_async()).metrics["loss:sum"]
                await done.result_async()
            run.log_step(step, metrics, window=window, tokens=16)
            if step == 6 and "wait" in sys.argv:
                print("waiting", flush=True)
                await asyncio.Event().wait()

asyncio.run(main(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("engine")) as running:
        yield running


def start(server, script: Path, log: Path, *words: str) -> subprocess.Popen[str]:
    environment = os.environ | {
        "TINKER_BASE_URL": server.url,
        "TINKER_API_KEY": server.key,
        "TINKER_TELEMETRY": "0",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    return subprocess.Popen(
        [sys.executable, str(script), str(log), *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def losses(log: Path) -> dict[int, float]:
    rows = [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows if "loss" in row}


@pytest.mark.long
def test_ctrl_c_saves_and_the_same_command_goes_on_exactly(server, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    alone = start(server, script, tmp_path / "alone")
    _, errors = alone.communicate(timeout=120)
    assert alone.returncode == 0, errors

    broken = start(server, script, tmp_path / "broken", "wait")
    assert broken.stdout is not None
    assert broken.stdout.readline() == "waiting\n"
    broken.send_signal(signal.SIGINT)
    _, errors = broken.communicate(timeout=120)
    assert broken.returncode != 0
    assert re.search(r"Interrupted at step 7, saved as tinker://\S+/weights/interrupted-000007", errors), (
        errors
    )
    assert "behavior_if_log_dir_exists=resume" in errors

    again = start(server, script, tmp_path / "broken")
    _, errors = again.communicate(timeout=120)
    assert again.returncode == 0, errors
    assert "going on with step 7 of 12" in errors
    assert losses(tmp_path / "broken") == losses(tmp_path / "alone")
    assert len(losses(tmp_path / "alone")) == 12
