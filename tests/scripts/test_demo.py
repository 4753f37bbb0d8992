import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import demo
from tinker_engine.errors import DownloadError

DEMO = """
from scripts import demo
demo.DEMOS["tiny"].settings.update(max_steps=4, batch_size=16, test_size=20)
raise SystemExit(demo.main(["--model", "tiny"]))
"""


@pytest.mark.long
def test_the_demo_learns_and_shows_what_changed_and_again_shows_it(tmp_path: Path):
    """As `make demo MODEL=tiny` runs it: a process of its own, which starts its engine."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TINKER_")}
    environment |= {"TINKER_ENGINE_HOME": str(tmp_path / "home"), "PYTHONPATH": os.getcwd()}
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, "-c", DEMO], env=environment, cwd=tmp_path, capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stderr[-2000:]
        lines = ran.stdout.splitlines()
        assert sum("│" in line for line in lines) == 1 + 2 * demo.SHOWN
        rewards = next(line for line in lines if line.startswith("reward of sampled answers"))
        before, after = (int(part.rstrip("%")) for part in rewards.split() if part.endswith("%"))
        assert 0 <= before < after <= 100
        for line in lines:
            if line.startswith(("The curve:", "What it said")):
                assert (tmp_path / line.rpartition(" ")[2]).is_file()
    rows = (tmp_path / "runs/demo-tiny-chat/metrics.jsonl").read_text().splitlines()
    assert len(rows) == 4 + 1  # the second time there was nothing left to train


def test_where_the_model_cannot_be_pulled_the_tiny_one_takes_its_place(monkeypatch, capsys):
    def refuse(name: str) -> None:
        raise DownloadError("there is no network")

    monkeypatch.setattr(demo, "pull", refuse)
    assert demo.available(demo.DEMOS["smollm2"]) is demo.DEMOS["tiny"]
    assert "cannot be pulled here: there is no network" in capsys.readouterr().err


def test_of_a_resumed_run_the_last_row_of_a_step_counts(tmp_path: Path):
    rewards = [(0, 0.1), (1, 0.5), (1, 0.7)]
    rows = [{"step": step, demo.REWARD: reward, demo.HELD_OUT: reward} for step, reward in rewards]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [line.split()[-3:] for line in demo.figures(tmp_path).splitlines()] == [["10%", "→", "70%"]] * 2


def test_a_long_answer_is_cut():
    assert demo.shortened("one\ntwo") == "one two"
    assert len(demo.shortened("word " * 40)) == demo.WIDTH - 4
