"""The command as a user types it, with files and modules of their own, on the real engine."""

import json
import random
from pathlib import Path

import pytest

from tests.tinker_cookbook.rl.test_exact import figures
from tinker_cookbook.rl import train_cli
from tinker_cookbook.tasks import get_task

SMALL = ["batch_size=2", "group_size=4", "max_tokens=8", "lora_rank=4", "save_every=0", "num_groups_to_log=1"]

MY_ENVS = """
import chz

from tinker_cookbook.rl.problem_files import ProblemListBuilder


@chz.chz
class Ping(ProblemListBuilder):
    pairs: list[tuple[str, str]] = chz.field(default_factory=lambda: [("Ping?", "o")] * 4)
    check: str = "contains"
"""


@pytest.fixture
def folder(engine, tmp_path, monkeypatch) -> Path:
    """Where the user is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # as `python -m` does
    return tmp_path


def test_a_file_of_problems_is_trained_on_and_the_same_command_goes_on(folder):
    task, rng = get_task("arithmetic"), random.Random(0)
    with (folder / "sums.jsonl").open("w") as file:
        for number in range(8):
            problem = task.problem("train", number)
            row = {"question": problem.prompt[-1]["content"], "answer": problem.right_reply([], rng)}
            file.write(json.dumps(row) + "\n")
    words = ["env=sums.jsonl", "env_options=check=contains", *SMALL, "test_size=2", "eval_every=2"]
    assert train_cli.main([*words, "max_steps=2"]) == 0
    run = folder / "runs" / "rl-sums-tiny-chat"
    assert train_cli.main([*words, "behavior_if_log_dir_exists=resume"]) == 0
    rows = figures(run)
    assert {step for step, row in rows.items() if "env/all/correct" in row} == {0, 1, 2}
    assert {step for step, row in rows.items() if "test/env/all/correct" in row} == {0, 2, 3}
    assert (run / "reward.png").exists()
    assert (run / "iteration_000002" / "train.html").exists()
    assert "going on with step 2 of 3" in (run / "logs.log").read_text()


def test_a_builder_of_ones_own_is_trained_on_ahead_and_in_parts(folder):
    (folder / "my_envs.py").write_text(MY_ENVS)
    words = ["env=my_envs:Ping", *SMALL, "max_steps_off_policy=1", "num_minibatches=2", "eval_every=0"]
    assert train_cli.main([*words, "remove_constant_reward_groups=False", "log_path=here"]) == 0
    assert set(figures(folder / "here")) == {0, 1}
