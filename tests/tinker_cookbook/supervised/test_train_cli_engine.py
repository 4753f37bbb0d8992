"""The command as a user types it, with the real engine and its tiny model."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.server import ROOT, Server, running_server
from tinker_cookbook.tasks import get_task


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("engine")) as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where the user is: with a file of 60 conversations."""
    folder = tmp_path_factory.mktemp("user")
    task, rng = get_task("arithmetic"), random.Random(0)
    with (folder / "sums.jsonl").open("w") as file:
        for i in range(60):
            problem = task.problem("train", i)
            answer = {"role": "assistant", "content": problem.right_reply([], rng)}
            file.write(json.dumps({"messages": [*problem.prompt, answer], "n": i}) + "\n")
    return folder


def command(server: Server, folder: Path, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "TINKER_BASE_URL": server.url,
        "TINKER_API_KEY": server.key,
        "TINKER_TELEMETRY": "0",
        "HF_ENDPOINT": server.url,
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.run(
        [sys.executable, "-m", f"tinker_cookbook.supervised.{module}", *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def metrics(run: Path) -> dict[int, dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    merged: dict[int, dict[str, Any]] = {}
    for row in rows:
        merged.setdefault(row["step"], {}).update(row)
    return merged


def test_a_file_is_trained_on_evaluated_and_shown_and_the_same_command_goes_on(server, folder):
    options = ["dataset=sums.jsonl", "lora_rank=4", "eval_every=2", "batch_size=8", "sample_tokens=16"]
    ran = command(server, folder, "train_cli", *options, "max_steps=3")
    assert ran.returncode == 0, ran.stderr[-3000:]
    run = folder / "runs" / "sft-sums-tiny-chat"
    assert "sums.jsonl: 60 rows of conversations (messages); ignored columns: n" in ran.stderr
    assert "sample: " in (run / "logs.log").read_text()
    steps = metrics(run)
    assert {step for step, row in steps.items() if "train_mean_nll" in row} == {0, 1, 2}
    assert {step for step, row in steps.items() if "test/nll" in row} == {0, 2, 3}
    assert 0 <= steps[3]["samples/ended"] <= 1
    assert (run / "iteration_000000" / "eval_samples.html").exists()

    more = command(server, folder, "train_cli", *options, "max_steps=5", "behavior_if_log_dir_exists=resume")
    assert more.returncode == 0, more.stderr[-3000:]
    assert {step for step, row in metrics(run).items() if "train_mean_nll" in row} == set(range(5))
    assert "going on with step 3 of 5" in more.stderr


def test_what_the_user_gets_wrong_is_one_line(server, folder):
    (folder / "deaf.jsonl").write_text('{"messages": [{"role": "user", "content": "hi"}]}\n')
    ran = command(server, folder, "train_cli", "dataset=deaf.jsonl")
    assert ran.returncode == 1
    last = ran.stderr.splitlines()[-1]
    assert last.startswith("error: deaf.jsonl, line 1: the conversation has no assistant message to learn")
    assert "Traceback" not in ran.stderr
    assert not (folder / "runs" / "sft-deaf-tiny-chat").exists()
