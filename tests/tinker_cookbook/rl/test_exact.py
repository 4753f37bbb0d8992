"""Synchronous runs to the last bit: the same seed gives the same run, killed on the way or not."""

import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import chz
import pytest

from tests.server import ROOT
from tests.tinker_cookbook.rl.exact_run import Moment, doing, noting_samples
from tinker_cookbook.rl import train, train_cli

pytestmark = pytest.mark.long

STEPS = 4
SAVED = 2  # steps of the checkpoint that a killed run goes on from
KILLED = 3
ARGUMENTS = [
    *(
        "batch_size=2",
        "group_size=4",
        f"max_steps={STEPS}",
        "max_tokens=24",
        "learning_rate=1e-3",
        "lora_rank=4",
    ),
    *("test_size=2", "eval_every=2", f"save_every={SAVED}", "num_groups_to_log=0"),
]
TASKS = {
    "arithmetic": [],
    "guess_number": ["eval_every=0", "max_steps=2"],
}  # of one turn; of several, which takes longer

Figures = dict[int, dict[str, Any]]


@pytest.fixture(autouse=True)
def _short(engine, monkeypatch):
    """What takes time and is not compared."""
    monkeypatch.setattr(train, "draw_curves", lambda *_: None)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[str, Path]:
    return {task: tmp_path_factory.mktemp("undisturbed") / task for task in TASKS}


@pytest.fixture
def whole(engine, undisturbed) -> dict[str, Path]:
    """The runs that nothing happens to, made once."""
    for task, folder in undisturbed.items():
        if not folder.exists():
            run(task, folder)
    return undisturbed


def arguments(task: str, folder: Path, *more: str) -> list[str]:
    return [f"env={task}", f"log_path={folder}", *ARGUMENTS, *TASKS[task], *more]


def run(task: str, folder: Path, *more: str) -> None:
    with noting_samples():
        assert train_cli.main(arguments(task, folder, *more)) == 0


def figures(folder: Path) -> Figures:
    """All metrics but times, by step: of a step that was done twice, the last."""
    found: Figures = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        kept = {key: value for key, value in row.items() if not key.startswith(("time/", "speed/"))}
        kept.pop("resumed", None)
        found.setdefault(row["step"], {}).update(kept)
    return found


def differences(folder: Path, other: Path) -> list[str]:
    """The first ones, by step; of samples only where."""
    ours, theirs = figures(folder), figures(other)
    assert ours.keys() == theirs.keys()
    found: list[str] = []
    for step in range(len(list(other.glob("sampled_*.json")))):
        name = f"sampled_{step}.json"
        if (folder / name).read_text() != (other / name).read_text():
            found.append(f"samples of step {step}")
        found += [
            f"{key} of step {step}: {ours[step].get(key)} and {theirs[step].get(key)}"
            for key in sorted(ours[step].keys() | theirs[step].keys())
            if ours[step].get(key) != theirs[step].get(key)
        ]
    return found[:8] or ["the last evaluation"] * (ours.get(STEPS) != theirs.get(STEPS))


@pytest.mark.parametrize("task", TASKS)
def test_the_same_seed_is_the_same_run(whole, tmp_path, task):
    run(task, tmp_path / "again")
    assert differences(tmp_path / "again", whole[task]) == []
    rows = figures(whole[task])
    assert len(rows) == {"arithmetic": STEPS + 1, "guess_number": 2}[task], "with one for the last evaluation"
    assert any(row.get("optim/optimizer_steps") for row in rows.values()), "something was learned"
    if task == "guess_number":
        assert max(row["env/all/turns_per_episode"] for row in rows.values()) > 1
    else:
        assert {step for step, row in rows.items() if "test/env/all/correct" in row} == {0, 2, STEPS}


def test_another_seed_is_another_run(whole, tmp_path):
    run("arithmetic", tmp_path / "other", "seed=1")
    assert differences(tmp_path / "other", whole["arithmetic"])[0] == "samples of step 0"


def test_rollouts_in_another_process_are_the_same_run(whole, tmp_path):
    words = arguments("arithmetic", tmp_path / "pool")
    config = train_cli.build_config(chz.Blueprint(train_cli.CLIConfig).make_from_argv(words))
    pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    with noting_samples():
        asyncio.run(train.main(config, pool))
    assert differences(tmp_path / "pool", whole["arithmetic"]) == []
    with pytest.raises(RuntimeError, match="shutdown"):
        pool.submit(print)


@pytest.mark.parametrize("moment", ["sampling", "update"])
def test_a_killed_script_goes_on_to_the_same_end(whole, tmp_path, moment):
    folder = tmp_path / "killed"
    kill_script_at(moment, arguments("arithmetic", folder))
    assert set(figures(folder)) == set(range(KILLED)), "the row of the step under way is not there"
    run("arithmetic", folder, "behavior_if_log_dir_exists=resume")
    assert differences(folder, whole["arithmetic"]) == []
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert steps == [*range(KILLED), *range(SAVED, STEPS + 1)]


def kill_script_at(moment: Moment, words: list[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.tinker_cookbook.rl.exact_run", moment, str(KILLED), *words],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert "here\n" in process.stdout, "it came to that moment"
    process.kill()
    process.communicate()


def test_a_killed_compute_process_changes_nothing(whole, engine, tmp_path):
    killed: list[int] = []
    with doing(lambda: killed.append(engine.kill_compute()), "sampling", KILLED):
        run("arithmetic", tmp_path / "run")
    assert len(killed) == 1
    assert differences(tmp_path / "run", whole["arithmetic"]) == []
