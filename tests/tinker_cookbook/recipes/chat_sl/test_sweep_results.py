"""What is made of a finished sweep: the table, the files, the plot."""

import csv
import json
import math
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.tinker_cookbook.recipes.chat_sl.sweep_mains import FakeConfig, write_metrics
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.chat_sl import sweep
from tinker_cookbook.recipes.chat_sl.sweep import plot
from tinker_cookbook.recipes.chat_sl.sweep.analyze import analyze
from tinker_cookbook.recipes.chat_sl.sweep.results import choose_metric, collect_rows

LOSSES = {
    (1e-4, 8): 2.0,
    (1e-3, 8): 1.0,
    (1e-2, 8): math.nan,
    (1e-4, 32): 1.5,
    (1e-3, 32): 0.5,
}


def main(config: FakeConfig) -> None:
    found = LOSSES.get((config.learning_rate, config.lora_rank))
    if found is None:
        raise ValueError("too hot & too <wide>")
    write_metrics(config, **{"train_mean_nll": 3.0, "test/nll": found})


@pytest.fixture
def swept(tmp_path) -> Path:
    axes = {"learning_rate": [1e-4, 1e-3, 1e-2], "lora_rank": [8, 32]}
    sweep.run(main, FakeConfig(), sweep_dir=str(tmp_path), **axes)
    return tmp_path


def test_the_table_shows_each_run_and_marks_the_best(swept):
    lines = analyze(str(swept)).splitlines()
    assert lines[0].split() == ["learning_rate", "lora_rank", "steps", "test/nll", "seconds", "status"]
    assert [line.split()[:4] for line in lines[1:]] == [
        ["0.0001", "8", "1", "2.0000"],
        ["0.0001", "32", "1", "1.5000"],
        ["0.001", "8", "1", "1.0000"],
        ["0.001", "32", "1", "0.5000"],
        ["0.01", "8", "1", "nan"],
        ["0.01", "32", "-", "-"],
    ]
    assert ["*" in line for line in lines].index(True) == 4
    assert lines[5].endswith("diverged: test/nll is nan")
    assert lines[6].endswith("failed: ValueError: too hot & too <wide>")


def test_the_files(swept):
    analyze(str(swept))
    rows = list(csv.DictReader((swept / "results.csv").open()))
    assert len(rows) == 6
    assert rows[0]["name"] == "learning_rate=0.0001_lora_rank=8"
    assert (rows[0]["learning_rate"], rows[0]["test/nll"]) == ("0.0001", "2.0")
    best = json.loads((swept / "recommendations.json").read_text())
    assert best["metric"] == "test/nll"
    assert best["best"]["name"] == "learning_rate=0.001_lora_rank=32"
    assert {rank: row["test/nll"] for rank, row in best["best_per_lora_rank"].items()} == {
        "8": 1.0,
        "32": 0.5,
    }
    assert best["best_per_learning_rate"]["0.01"] is None
    assert list(best["without_a_figure"]) == [
        "learning_rate=0.01_lora_rank=8",
        "learning_rate=0.01_lora_rank=32",
    ]


def test_the_plot_needs_nothing_but_itself(swept):
    analyze(str(swept))
    page = (swept / "loss_vs_lr.html").read_text()
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "<script" not in page
    assert "too &lt;wide&gt;" in page
    parser = HTMLParser()
    parser.feed(page)
    parser.close()

    drawn = ElementTree.fromstring(plot.svg(collect_rows(swept), "test/nll"))
    space = "{http://www.w3.org/2000/svg}"
    points = {
        circle.findtext(f"{space}title"): (float(circle.get("cx", "")), float(circle.get("cy", "")))
        for circle in drawn.iter(f"{space}circle")
        if circle.find(f"{space}title") is not None
    }
    assert len(points) == 4
    crosses = [text for text in drawn.iter(f"{space}text") if (text.text or "").startswith("×")]
    assert len(crosses) == 2
    low = points["learning_rate=0.001_lora_rank=32: 0.5000"]
    high = points["learning_rate=0.0001_lora_rank=8: 2.0000"]
    assert low[1] > high[1]  # down the page is a lower loss
    middle = (plot.LEFT + plot.WIDTH - plot.RIGHT) / 2
    assert low[0] == pytest.approx(middle)  # 1e-3 is half way from 1e-4 to 1e-2, by powers of ten
    labels = {text.text for text in drawn.iter(f"{space}text")}
    assert {"learning_rate", "test/nll", "lora_rank 8", "lora_rank 32", "0.0001"} <= labels


def test_a_run_that_resumed_counts_with_its_later_row(tmp_path):
    def twice(config: FakeConfig) -> None:
        write_metrics(config, train_mean_nll=2.0)
        write_metrics(config, train_mean_nll=1.0, resumed=1)

    sweep.run(twice, FakeConfig(), sweep_dir=str(tmp_path))
    (row,) = collect_rows(tmp_path)
    assert (row["step"], row["train_mean_nll"]) == (1, 1.0)
    assert "resumed" not in row


def test_one_point_and_no_numbers_can_be_shown(tmp_path):
    sweep.run(main, FakeConfig(), sweep_dir=str(tmp_path / "one"), learning_rate=[1e-3])
    analyze(str(tmp_path / "one"), "train_mean_nll")
    assert "<p>There is nothing to plot" in plot.svg(collect_rows(tmp_path / "one"), "missing")
    sweep.run(main, FakeConfig(learning_rate=1e-3), sweep_dir=str(tmp_path / "none"))
    assert "1.0000 *" not in analyze(str(tmp_path / "none"), "train_mean_nll")


def test_with_pandas_rows_are_a_data_frame(tmp_path, monkeypatch):
    pandas: Any = ModuleType("pandas")
    pandas.DataFrame = tuple
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    table = sweep.run(main, FakeConfig(learning_rate=1e-3), sweep_dir=str(tmp_path), lora_rank=[8, 32])
    assert isinstance(table, tuple)
    assert table == sweep.collect(str(tmp_path))


def test_the_metric_is_the_held_out_loss_if_there_is_one():
    assert choose_metric([{"train_mean_nll": 1.0, "test/nll": 2.0}], None) == "test/nll"
    assert choose_metric([{"train_mean_nll": 1.0}], None) == "train_mean_nll"
    with pytest.raises(ConfigurationError, match="metric= can be: a, train_mean_nll"):
        choose_metric([{"train_mean_nll": 1.0, "a": 1, "b": "text"}], "reward")


@pytest.mark.parametrize(("there", "said"), [(False, "it is not a folder"), (True, "has no runs")])
def test_nothing_to_analyze(tmp_path, there, said):
    folder = tmp_path / "sweep"
    if there:
        folder.mkdir()
    with pytest.raises(ConfigurationError, match=said):
        analyze(str(folder))
