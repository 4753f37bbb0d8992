"""The points of a grid and what their runs are called."""

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import chz

from tinker_cookbook.exceptions import ConfigurationError

Point = dict[str, Any]
NameFn = Callable[[Point], str]


def grid(**axes: Sequence[Any]) -> list[Point]:
    """Every combination of one value of each axis, the last axis running fastest."""
    for name, values in axes.items():
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise ConfigurationError(f"the axis {name} needs a list of values, not {values!r}")
        if not values:
            raise ConfigurationError(f"the axis {name} has no values, so that there is nothing to run")
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def run_name(point: Point) -> str:
    """`learning_rate=0.0003_lora_rank=32`: the same settings are always the same name, and so the same folder."""
    return "_".join(f"{axis}={_written(value)}" for axis, value in point.items()) or "run"


def _written(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return re.sub(r"[^\w.+-]", "-", text)


def named_points(points: Sequence[Point], name_fn: NameFn | None) -> dict[str, Point]:
    named: dict[str, Point] = {}
    for point in points:
        name = (name_fn or run_name)(point)
        if name in named:
            raise ConfigurationError(
                f"two runs would be called {name}: {named[name]} and {point}; let name_fn tell them apart"
            )
        named[name] = point
    return named


def check_axes(base_config: Any, axes: dict[str, Any]) -> None:
    fields = chz.chz_fields(base_config)
    for axis in axes:
        if axis not in fields:
            raise ConfigurationError(
                f"{type(base_config).__name__} has no field {axis!r} to sweep over; it has: {', '.join(sorted(fields))}"
            )
    if "log_path" not in fields:
        raise ConfigurationError(
            f"{type(base_config).__name__} has no field log_path, which tells each run where to write"
        )
    if "log_path" in axes:
        raise ConfigurationError("log_path is not an axis: the sweep gives every run a folder of its own")
