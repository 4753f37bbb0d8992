"""Schedules, deprecation, reading, and the functions of misc_utils."""

import inspect
import json
import math
import sys
import types
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinker_cookbook
from tinker_cookbook.exceptions import ConfigurationError, DataFormatError
from tinker_cookbook.utils import deprecation
from tinker_cookbook.utils.deprecation import deprecated, make_deprecated_module_getattr, warn_deprecated
from tinker_cookbook.utils.file_utils import read_jsonl
from tinker_cookbook.utils.git_rev import recipe_user_metadata
from tinker_cookbook.utils.lr_scheduling import compute_schedule_lr_multiplier
from tinker_cookbook.utils.misc_utils import (
    all_same,
    concat_lists,
    dict_mean,
    iteration_dir,
    lookup_func,
    not_none,
    safezip,
    split_list,
    timed,
)

# --- learning rate


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1, 1, 1, 1, 1]),
        ("linear", [1, 0.75, 0.5, 0.25, 0]),
        ("cosine", [1, 0.5 + math.sqrt(2) / 4, 0.5, 0.5 - math.sqrt(2) / 4, 0]),
    ],
)
def test_schedules(schedule, expected):
    assert [compute_schedule_lr_multiplier(schedule, step, 4) for step in range(5)] == pytest.approx(expected)


def test_warm_up_then_the_schedule_over_the_rest():
    got = [compute_schedule_lr_multiplier("linear", step, 6, warmup_steps=2) for step in range(7)]
    assert got == [0.5, 1, 1, 0.75, 0.5, 0.25, 0]


def test_past_the_end_no_rate_turns_negative():
    assert compute_schedule_lr_multiplier("linear", 9, 4) == 0
    assert compute_schedule_lr_multiplier("cosine", 9, 4) == pytest.approx(0)


@pytest.mark.parametrize(
    "arguments",
    [("exponential", 0, 4), ("linear", 0, 0), ("linear", -1, 4), ("linear", 0, 4, 4), ("linear", 0, 4, -1)],
)
def test_bad_schedules(arguments):
    with pytest.raises(ConfigurationError):
        compute_schedule_lr_multiplier(*arguments)


# --- deprecation


@pytest.fixture
def version(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tinker_cookbook, "__version__", "0.3.0")


@pytest.mark.usefixtures("version")
def test_deprecated_names_warn_where_they_are_used():
    @deprecated
    def bare():
        return 1

    @deprecated(message="Use New.", removal_version="0.10.0")
    class Old:
        def __init__(self, x: int):
            self.x = x

    with pytest.warns(DeprecationWarning, match=r"bare is deprecated\.") as caught:
        assert bare() == 1
    assert caught[0].filename == __file__
    with pytest.warns(DeprecationWarning, match=r"will go in version 0\.10\.0\. Use New\.") as caught:
        assert Old(2).x == 2
    assert caught[0].filename == __file__
    assert bare.__name__ == "bare"


@pytest.mark.usefixtures("version")
def test_deprecated_coroutine_function_stays_one():
    @deprecated
    async def old(): ...

    assert inspect.iscoroutinefunction(old)


@pytest.mark.usefixtures("version")
@pytest.mark.parametrize("removal", ["0.3.0", "0.2.9"])
def test_a_promise_to_remove_is_kept(removal):
    with pytest.raises(RuntimeError, match="was to go"):
        warn_deprecated("old", removal_version=removal)


def test_an_unknown_version_only_warns(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tinker_cookbook, "__version__", "0.0.0.dev0+unknown")
    with pytest.warns(DeprecationWarning, match="old is deprecated"):
        warn_deprecated("old", removal_version="0.0.1")


@pytest.mark.usefixtures("version")
def test_moved_attributes_of_a_module(monkeypatch: pytest.MonkeyPatch):
    moved = types.ModuleType("moved_away")
    moved.__getattr__ = make_deprecated_module_getattr("moved_away", {"dumps": ("json.dumps", None)})  # pyright: ignore
    monkeypatch.setitem(sys.modules, "moved_away", moved)
    with pytest.warns(DeprecationWarning, match=r"moved_away\.dumps is deprecated\. Use json\.dumps"):
        assert moved.dumps is json.dumps
    with pytest.raises(AttributeError, match="no attribute 'loads'"):
        _ = moved.loads
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not hasattr(deprecation, "nothing")


# --- files


def test_read_jsonl(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": "x\u2028y"}\r\n\n{"a": 2}', encoding="utf-8")
    assert read_jsonl(str(path)) == [{"a": "x\u2028y"}, {"a": 2}]


def test_read_jsonl_from_a_bucket():
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").pipe_file("/read_jsonl/a.jsonl", b'{"a": 1}\n')
    assert read_jsonl("memory://read_jsonl/a.jsonl") == [{"a": 1}]


@pytest.mark.parametrize("bad", ["{", "[1]"])
def test_read_jsonl_says_which_line_is_bad(tmp_path: Path, bad: str):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n' + bad)
    with pytest.raises(DataFormatError, match="line 2"):
        read_jsonl(str(path))


# --- misc_utils


def test_timed_also_when_the_block_raises():
    metrics = {}
    with pytest.raises(KeyError), timed("x", metrics):
        raise KeyError
    assert metrics["time/x"] >= 0


def test_safezip_is_strict():
    assert list(safezip([1], [2])) == [(1, 2)]
    with pytest.raises(ValueError, match="shorter"):
        list(safezip([1, 2], [1]))


def test_dict_mean_over_those_that_have_the_key():
    assert dict_mean([{"a": 1, "b": 4}, {"a": 2}]) == {"a": 1.5, "b": 4.0}
    assert dict_mean([]) == {}


def test_all_same():
    assert all_same([])
    assert all_same([1, 1])
    assert not all_same([1, 2])


def test_lookup_func():
    assert lookup_func("json:dumps") is json.dumps
    assert lookup_func("dumps", default_module="json") is json.dumps
    with pytest.raises(ValueError, match="names no module"):
        lookup_func("dumps")


@given(st.lists(st.integers(), min_size=1), st.data())
def test_split_list(items, data):
    parts = split_list(items, data.draw(st.integers(1, len(items))))
    assert concat_lists(parts) == items
    sizes = {len(part) for part in parts}
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("count", [0, -1, 3])
def test_split_list_refuses(count):
    with pytest.raises(ValueError, match="cannot split"):
        split_list([1, 2], count)


def test_not_none():
    assert not_none(0) == 0
    with pytest.raises(AssertionError):
        not_none(None)


def test_iteration_dir(tmp_path: Path):
    assert iteration_dir(tmp_path, 12) == tmp_path / "iteration_000012"
    assert iteration_dir(f"file://{tmp_path}", 1) == tmp_path / "iteration_000001"
    assert iteration_dir(None, 1) is None
    assert iteration_dir("s3://bucket/run", 1) is None


def test_recipe_user_metadata():
    assert recipe_user_metadata("math") == {"recipe_name": "math", "git_rev": tinker_cookbook.__version__}
