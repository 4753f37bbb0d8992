"""Curves: the numbers that are drawn, the file, and what is said when there is none."""

import json
import logging
import math
import sys
from pathlib import Path

import pytest

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.utils import curves

REWARD = "env/all/reward/total"
PNG = b"\x89PNG\r\n\x1a\n"


def rows(count: int, start: float = 0.0) -> list[dict]:
    made = [{"step": step, REWARD: start + step / count, "optim/lr": 1e-4} for step in range(count)]
    for row in made[::10]:
        row[f"test/{REWARD}"] = row[REWARD] + 0.1
    return made


def test_test_metrics_are_dots_beside_the_metric_they_measure():
    training, test = curves.series_of(rows(30), REWARD)
    assert (training.name, training.dots, len(training.points)) == (REWARD, False, 30)
    assert (test.name, test.dots, [step for step, _ in test.points]) == (f"test/{REWARD}", True, [0, 10, 20])
    (alone,) = curves.series_of(rows(30), f"test/{REWARD}")
    assert alone.dots


def test_a_step_done_again_counts_once_and_what_is_no_number_is_left_out():
    given = [
        {"step": 1, "loss": 5.0},
        {"step": 0, "loss": 3},
        {"step": 1, "loss": 4.0},
        {"step": 1, "other": 1},  # a row of its own, as evaluations have
        {"step": 2, "loss": "NaN"},
        {"step": 3, "loss": math.inf},
        {"step": 4, "loss": "tinker://somewhere"},
        {"step": 5, "loss": None},
        {"loss": 9.0},
    ]
    (series,) = curves.series_of(given, "loss")
    assert series.points == [(0, 3.0), (1, 4.0)]


def test_smoothing_keeps_levels_and_ends():
    assert curves.smoothed([2.0] * 30) == pytest.approx([2.0] * 30)
    assert curves.smoothed([0.0] * 20 + [1.0] * 20)[::13] == pytest.approx([0, 0, 1, 1], abs=0.3)
    line = [float(k) for k in range(40)]
    assert curves.smoothed(line)[2:-2] == pytest.approx(line[2:-2])
    assert curves.smoothed([1e300, *[0.5] * 30])[-1] == 0.5


def test_without_matplotlib_one_warning_says_what_to_install(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not curves.save_curve_png(rows(3), tmp_path / "x.png", keys=[REWARD], title="")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "pip install matplotlib" in caplog.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("count", [1, 5, 60])
def test_a_picture_is_drawn(count, tmp_path, caplog):
    pytest.importorskip("matplotlib")
    path = tmp_path / "new" / "x.png"
    assert curves.save_curve_png(rows(count), path, keys=[REWARD, "optim/lr", "absent"], title="A run")
    assert path.read_bytes().startswith(PNG)
    assert "absent" in caplog.text


def test_nothing_to_draw(tmp_path, caplog):
    pytest.importorskip("matplotlib")
    assert not curves.save_curve_png([], tmp_path / "x.png", keys=[REWARD], title="A run")
    assert REWARD in caplog.text
    assert list(tmp_path.iterdir()) == []


class TestCommand:
    @pytest.fixture
    def runs(self, tmp_path: Path) -> list[str]:
        folders = [tmp_path / "a" / "seed0", tmp_path / "b" / "seed0", tmp_path / "b" / "seed1"]
        for place, folder in enumerate(folders):
            folder.mkdir(parents=True)
            lines = [json.dumps(row) + "\n" for row in rows(30, start=place)]
            (folder / "metrics.jsonl").write_text("".join(lines))
        return [str(folder) for folder in folders]

    def test_runs_go_by_the_names_of_their_folders(self, runs):
        assert list(curves.read_runs(runs[1:])) == ["seed0", "seed1"]
        assert list(curves.read_runs(runs)) == ["a/seed0", "b/seed0", "b/seed1"]

    def test_a_picture_of_several_runs(self, runs, tmp_path):
        pytest.importorskip("matplotlib")
        out = tmp_path / "all.png"
        assert curves.main([*runs, f"key={REWARD},optim/lr", f"out={out}"]) == str(out)
        assert out.read_bytes().startswith(PNG)

    def test_mistakes_are_told(self, runs, tmp_path):
        with pytest.raises(ConfigurationError, match="usage: "):
            curves.main(["key=x"])
        with pytest.raises(ConfigurationError, match=f"no metric is called x; .* {REWARD}"):
            curves.main([*runs, "key=x"])
        with pytest.raises(ConfigurationError, match="there is no folder"):
            curves.main([str(tmp_path / "typo")])
        assert not (tmp_path / "typo").exists()
        with pytest.raises(ConfigurationError, match="no rows"):
            curves.main([str(tmp_path / "a")])
