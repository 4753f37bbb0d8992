"""The page of the ledger. The recipes themselves are run by their own tests."""

import importlib.util

import pytest

from benchmarks.ledger import ENTRIES, page
from benchmarks.recipe_runs import cpu_seconds, parser, stolen_since


@pytest.mark.parametrize("name", ENTRIES)
def test_every_entry_is_a_command(name: str):
    assert importlib.util.find_spec(ENTRIES[name].run.module) is not None


def test_the_page_has_a_row_for_each_metric_and_the_command():
    first, last = {"0": 6.8, "40": 0.05}, {"0": 0.0, "20": 0.9, "40": 1.0}
    metrics = {"test/nll": first, "test/in_style_and_true": last}
    figures = {
        "sl_basic": {"command": "python -m x", "seeds": {"0": {"cpu": "Abacus", "seconds": 38, **metrics}}}
    }
    text = page(figures)
    assert "| sl_basic | `test/nll` | 6.8 → 0.05 | 0 | 38 |" in text
    assert "|  | `test/in_style_and_true` | 0 → 1 |  |  |" in text
    assert "\npython -m x\n" in text
    assert "\nOn Abacus: sl_basic.\n" in text


def test_all_recipes_are_run_unless_some_are_named():
    arguments = parser("", ENTRIES, all_by_default=True)
    assert arguments.parse_args([]).names == []
    assert arguments.parse_args(["sl_loop", "--seeds", "0", "1"]).names == ["sl_loop"]


def test_what_was_stolen_is_told_only_if_it_was():
    before = cpu_seconds()
    assert stolen_since(before).get("stolen", 0.0) >= 0
    less = before | {"steal": before.get("steal", 0.0) - 1000.0, "user": before["user"] - 1000.0}
    assert stolen_since(less)["stolen"] == pytest.approx(0.5, abs=0.05)
