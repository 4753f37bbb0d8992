"""The logic of sweeps, with mains that learn nothing."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import chz
import pytest
from chz.blueprint import EntrypointHelpException

from tests.tinker_cookbook.recipes.chat_sl.sweep_mains import FakeConfig, fail_or_die, succeed, write_metrics
from tinker_cookbook.exceptions import ConfigurationError, TrainingError
from tinker_cookbook.recipes.chat_sl import sweep
from tinker_cookbook.recipes.chat_sl.sweep import __main__ as command
from tinker_cookbook.recipes.chat_sl.sweep.points import run_name
from tinker_cookbook.recipes.chat_sl.sweep.results import collect_rows


def test_a_grid_is_every_combination():
    assert sweep.grid(a=[1, 2], b=["x", "y"]) == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    ]
    assert sweep.grid() == [{}]


@pytest.mark.parametrize("values", [[], "3e-4", 3e-4])
def test_an_axis_needs_values(values: Any):
    with pytest.raises(ConfigurationError, match="the axis learning_rate"):
        sweep.grid(learning_rate=values)


@pytest.mark.parametrize(
    ("point", "name"),
    [
        ({"learning_rate": 3e-4, "lora_rank": 32}, "learning_rate=0.0003_lora_rank=32"),
        ({"learning_rate": 1e-5}, "learning_rate=1e-05"),
        ({"model_name": "Qwen/Qwen3-8B"}, "model_name=Qwen-Qwen3-8B"),
        ({}, "run"),
    ],
)
def test_names_are_settings(point, name):
    assert run_name(point) == name


def test_every_run_has_its_own_folder_and_a_row(tmp_path):
    seen: list[FakeConfig] = []
    threads = set()

    def main(config: FakeConfig) -> None:
        seen.append(config)
        threads.add(threading.current_thread())
        succeed(config)

    rows = sweep.run(
        main, FakeConfig(), sweep_dir=str(tmp_path), learning_rate=[1e-4, 3e-4], lora_rank=[8, 32]
    )
    assert threads == {threading.main_thread()}
    assert {config.behavior_if_log_dir_exists for config in seen} == {"resume"}
    assert [config.log_path for config in seen] == [
        str(tmp_path / f"learning_rate={rate}_lora_rank={rank}")
        for rate in ("0.0001", "0.0003")
        for rank in (8, 32)
    ]
    assert isinstance(rows, list)
    assert [(row["learning_rate"], row["lora_rank"], row["status"]) for row in rows] == [
        (1e-4, 8, "done"),
        (1e-4, 32, "done"),
        (3e-4, 8, "done"),
        (3e-4, 32, "done"),
    ]
    assert rows[-1]["train_mean_nll"] == 1 / 32
    assert sweep.collect(str(tmp_path)) == rows


def test_a_coroutine_is_a_main_too(tmp_path):
    async def main(config: FakeConfig) -> None:
        succeed(config)

    (row,) = sweep.run(main, FakeConfig(), sweep_dir=str(tmp_path))
    assert row["status"] == "done"


def test_what_is_finished_is_skipped_and_what_is_not_goes_on(tmp_path):
    started: list[tuple[int, int | None]] = []
    broken = {16}

    def main(config: FakeConfig) -> None:
        started.append((config.lora_rank, config.max_steps))
        if config.lora_rank in broken:
            raise RuntimeError("the network is down")
        succeed(config)

    def run(**fields: Any) -> Any:
        config = FakeConfig(**fields)
        return sweep.run(main, config, sweep_dir=str(tmp_path), skip_existing=True, lora_rank=[8, 16, 32])

    assert [row["status"] for row in run()] == ["done", "failed", "done"]
    broken.clear()
    started.clear()
    assert [row["status"] for row in run()] == ["done", "done", "done"]
    assert started == [(16, None)]
    started.clear()
    run()
    assert started == []
    run(max_steps=9)  # other settings are other work
    assert started == [(8, 9), (16, 9), (32, 9)]


def test_without_skipping_every_run_is_started_again(tmp_path):
    for _ in range(2):
        sweep.run(succeed, FakeConfig(), sweep_dir=str(tmp_path))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 4


def test_processes_of_their_own_and_one_that_dies(tmp_path, caplog):
    rows = sweep.run(
        fail_or_die, FakeConfig(), sweep_dir=str(tmp_path), max_parallel=3, lora_rank=[1, 2, 3, 4]
    )
    raised, killed, left, done = rows
    assert (raised["status"], raised["error"]) == ("failed", "ValueError: a rank of one")
    assert "a rank of one" in (tmp_path / "lora_rank=1" / "error.txt").read_text()
    assert killed["status"] == "failed"
    assert "exit code -9" in killed["error"]
    assert left["error"] == "SystemExit: a rank of three"
    assert (done["status"], done["error"]) == ("done", None)
    assert "learning at" in (tmp_path / "lora_rank=4" / "output.log").read_text()
    assert "lora_rank=2: failed" in caplog.text


class _Gate:
    """Counts who is inside; the second to come in lets all go on."""

    def __init__(self, parties: int):
        self.barrier = threading.Barrier(parties)
        self.lock = threading.Lock()
        self.inside = self.most = 0

    def __call__(self, config: FakeConfig) -> None:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        self.barrier.wait(timeout=30)
        with self.lock:
            self.inside -= 1
        write_metrics(config, train_mean_nll=1.0)


def test_an_executor_runs_as_many_as_it_likes(tmp_path):
    gate = _Gate(2)
    with ThreadPoolExecutor(2) as executor:
        rows = sweep.run(
            gate, FakeConfig(), sweep_dir=str(tmp_path), executor=executor, lora_rank=[1, 2, 3, 4]
        )
    assert [row["status"] for row in rows] == ["done"] * 4
    assert gate.most == 2


def test_no_more_children_than_the_limit(tmp_path, monkeypatch):
    """With threads in place of processes, which is all that the limit knows about."""
    gate = _Gate(2)
    monkeypatch.setattr("tinker_cookbook.recipes.chat_sl.sweep.running._run_in_child", _here)
    monkeypatch.setattr("tinker_cookbook.recipes.chat_sl.sweep.running._check_picklable", lambda job: None)
    sweep.run(gate, FakeConfig(), sweep_dir=str(tmp_path), max_parallel=2, lora_rank=[1, 2, 3, 4])
    assert gate.most == 2


def _here(job):
    from tinker_cookbook.recipes.chat_sl.sweep.running import _run_here

    return _run_here(job)


def test_ctrl_c_ends_the_sweep_and_the_run_counts_as_unfinished(tmp_path):
    def main(config: FakeConfig) -> None:
        if config.lora_rank == 2:
            raise KeyboardInterrupt
        succeed(config)

    with pytest.raises(KeyboardInterrupt):
        sweep.run(main, FakeConfig(), sweep_dir=str(tmp_path), lora_rank=[1, 2, 3])
    assert [(row["lora_rank"], row["status"]) for row in collect_rows(tmp_path)] == [
        (1, "done"),
        (2, "running"),
    ]


# --- what cannot be swept ---------------------------------------------------------------------------------


@chz.chz
class NoLogPath:
    learning_rate: float = 1.0


@pytest.mark.parametrize(
    ("config", "arguments", "said"),
    [
        (FakeConfig(), {"learning_rates": [1.0]}, "no field 'learning_rates'"),
        (FakeConfig(), {"log_path": ["a"]}, "log_path is not an axis"),
        (NoLogPath(), {"learning_rate": [1.0]}, "no field log_path"),
        (FakeConfig(), {"lora_rank": [8, 8]}, "two runs would be called lora_rank=8"),
        (FakeConfig(), {"lora_rank": [8], "max_parallel": 0}, "max_parallel=0"),
    ],
)
def test_refusals(tmp_path, config, arguments, said):
    with pytest.raises(ConfigurationError, match=said):
        sweep.run(succeed, config, sweep_dir=str(tmp_path / "sweep"), **arguments)
    assert not (tmp_path / "sweep").exists()


def test_a_main_that_cannot_be_sent_to_a_process(tmp_path):
    with pytest.raises(ConfigurationError, match="max_parallel=1"):
        sweep.run(
            lambda config: None, FakeConfig(), sweep_dir=str(tmp_path), max_parallel=2, lora_rank=[1, 2]
        )


def test_a_name_that_means_another_run_now(tmp_path):
    name_fn = lambda point: "always"  # noqa: E731
    sweep.run(succeed, FakeConfig(), sweep_dir=str(tmp_path), name_fn=name_fn, lora_rank=[1])
    with pytest.raises(ConfigurationError, match="use another sweep_dir"):
        sweep.run(succeed, FakeConfig(), sweep_dir=str(tmp_path), name_fn=name_fn, lora_rank=[2])


# --- the command ------------------------------------------------------------------------------------------

MAINS = """
from tests.tinker_cookbook.recipes.chat_sl.sweep_mains import FakeConfig, fail_or_die
import chz

@chz.chz
class CLIConfig(FakeConfig):
    model_name: str = "m"

def cli_main(config):
    (open(config.log_path + "/steps", "w")).write(str(config.max_steps))
    fail_or_die(config)
"""


@pytest.fixture
def recipe(tmp_path, monkeypatch) -> str:
    (tmp_path / "fake_recipe.py").write_text(MAINS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "fake_recipe", raising=False)
    return "fake_recipe"


def test_the_command_runs_a_grid_within_a_budget_and_shows_it(recipe, tmp_path, capsys):
    folder = tmp_path / "sweep"
    words = ["learning_rates=1e-4,3e-4", "lora_ranks=8,32", "batch_sizes=10,50"]
    budget = ["training_budget_examples=100", f"sweep_dir={folder}"]
    command.main([f"recipe={recipe}", *words, *budget, "base.max_steps=8"])
    shown = capsys.readouterr().out
    assert "0.0003         32         50" in shown
    assert shown.count("done") == 8
    steps = {path.parent.name: int(path.read_text()) for path in folder.glob("*/steps")}
    assert steps["learning_rate=0.0001_lora_rank=8_batch_size=10"] == 8
    assert steps["learning_rate=0.0001_lora_rank=8_batch_size=50"] == 2
    best = json.loads((folder / "recommendations.json").read_text())
    assert best["best"]["learning_rate"] == 3e-4
    assert set(best["best_per_lora_rank"]) == {"8", "32"}


def test_the_command_says_what_failed(recipe, tmp_path, capsys):
    words = [f"recipe={recipe}", "learning_rates=1e-4", "lora_ranks=1,8", f"sweep_dir={tmp_path / 'sweep'}"]
    with pytest.raises(TrainingError, match=r"1 runs are not done: learning_rate=0\.0001_lora_rank=1\."):
        command.main(words)
    assert "failed: ValueError: a rank of one" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["recipe=sfft"], "use sft, distillation, dpo, shorter"),
        (["recipe=shorter", "training_budget_examples=5"], "base.max_steps="),
        (["recipe=json"], "json cannot be swept"),
        (["training_budget_examples=5"], "batch_sizes="),
    ],
)
def test_the_command_refuses(words, said, tmp_path):
    with pytest.raises(ConfigurationError, match=said):
        command.main([*words, f"sweep_dir={tmp_path}"])


def test_help_lists_the_recipe_too(capsys):
    with pytest.raises(EntrypointHelpException):  # an exit, where it is not pytest that runs it
        command.main(["--help"])
    shown = capsys.readouterr().out
    assert "max_parallel" in shown
    assert "num_epochs" in shown


def test_without_a_sweep_dir_the_same_call_is_the_same_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for _ in range(2):
        sweep.run(succeed, FakeConfig(), lora_rank=[8])
    found = list(Path(tmp_path).glob("**/sweep_run.json"))
    assert len(found) == 1
    named = FakeConfig(log_path=str(tmp_path / "named"))
    sweep.run(succeed, named, lora_rank=[8])
    assert (tmp_path / "named" / "lora_rank=8" / "sweep_run.json").exists()
