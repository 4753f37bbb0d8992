import dataclasses
import datetime
import json
import math
from enum import Enum, StrEnum
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pydantic
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tinker_cookbook.utils.jsonable import to_jsonable


class Colour(Enum):
    RED = 1
    ODD = object()


class Name(StrEnum):
    A = "a"


@dataclasses.dataclass
class Point:
    x: float
    tags: set[str]


class Model(pydantic.BaseModel):
    n: int
    when: datetime.date


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.float64(0.25), 0.25),
        (np.longdouble(2), 2.0),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.str_("s"), "s"),
        (np.array(1.5), 1.5),
        (np.array([[1, 2]]), [[1, 2]]),
        (np.array([1.0, np.nan]), [1.0, "NaN"]),
        (torch.tensor(2.0, requires_grad=True), 2.0),
        (torch.tensor(1.5, dtype=torch.bfloat16), 1.5),
        (torch.tensor([1, 2]), [1, 2]),
        (math.nan, "NaN"),
        (np.float32("inf"), "Infinity"),
        (-math.inf, "-Infinity"),
        (Colour.RED, 1),
        (Colour.ODD, "ODD"),
        (Name.A, "a"),
        (PurePosixPath("a/b"), "a/b"),
        ({"b", "a"}, ["a", "b"]),
        (frozenset({1, "a"}), ["a", 1]),
        ((1, None, True), [1, None, True]),
        ({1: "int", Name.A: "enum"}, {"1": "int", "a": "enum"}),
        (b"caf\xc3\xa9 \xff", "café \\xff"),
        (datetime.datetime(2026, 1, 2, 3, 4, 5), "2026-01-02T03:04:05"),
        (Point(1.0, {"b", "a"}), {"x": 1.0, "tags": ["a", "b"]}),
        (Model(n=1, when=datetime.date(2026, 1, 2)), {"n": 1, "when": "2026-01-02"}),
        (torch.float32, "torch.float32"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values(value: Any, expected: Any):
    got = to_jsonable(value)
    assert got == expected
    assert type(got) is type(expected)
    json.dumps(got, allow_nan=False)


def test_non_finite_numbers_come_back_by_float():
    text = json.dumps(to_jsonable({"loss": math.nan, "kl": math.inf, "low": -math.inf}), allow_nan=False)
    loss, kl, low = (float(value) for value in json.loads(text).values())
    assert math.isnan(loss)
    assert (kl, low) == (math.inf, -math.inf)


def test_a_cycle_ends():
    loop: dict[str, Any] = {"x": 1}
    loop["self"] = [loop]
    assert to_jsonable(loop) == {"x": 1, "self": ["<cycle: builtins.dict>"]}


def test_the_same_object_twice_is_no_cycle():
    shared = [1]
    assert to_jsonable({"a": shared, "b": shared}) == {"a": [1], "b": [1]}


def test_bottomless_nesting_ends():
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert "nested deeper" in json.dumps(to_jsonable(deep))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(max_examples=30)
@given(json_values)
def test_json_is_left_as_it_is(value: Any):
    assert to_jsonable(value) == value
