"""Curves of a run's metrics as a picture, and several runs in one.

python -m tinker_cookbook.utils.curves LOG_PATH [LOG_PATH ...] key=env/all/reward/total out=curves.png
"""

import logging
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.stores.training_store import TrainingRunStore

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

Rows = Sequence[Mapping[str, Any]]

SMOOTHED_FROM = 21  # points; fewer can be read as they are
DEFAULT_KEYS = ("env/all/reward/total", "train_mean_nll")
USAGE = "usage: python -m tinker_cookbook.utils.curves LOG_PATH [LOG_PATH ...] [key=NAME,...] [out=PNG] [title=TEXT]"

# Okabe and Ito's colours, which can be told apart by people who see colours differently.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "osD^vP"  # and a form each, for print


@dataclass(frozen=True)
class Series:
    name: str
    points: list[tuple[int, float]]
    dots: bool  # measured now and then: a test metric


def save_curve_png(rows: Rows, path: Path, *, keys: Sequence[str], title: str) -> bool:
    """A panel for each key, over `step`, with the test metrics of the same name as dots. False if none was drawn."""
    return save_comparison_png({"": rows}, path, keys=keys, title=title)


def save_comparison_png(runs: Mapping[str, Rows], path: Path, *, keys: Sequence[str], title: str) -> bool:
    """The same for several runs by name, in a colour each."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "matplotlib":
            raise  # it is there and lacks something
        logger.warning("no picture of the curves (%s): pip install matplotlib, and it is drawn", path)
        return False
    panels = {key: found for key in keys if any(found := [series_of(rows, key) for rows in runs.values()])}
    if missing := [key for key in keys if key not in panels]:
        logger.warning("nothing to draw of %s: no row has a number under that name", ", ".join(missing))
    if not panels:
        return False
    columns = 1 if len(panels) == 1 else 2
    lines = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(7.2 if columns == 1 else 6 * columns, 0.5 + 3.5 * lines), layout="constrained")
    figure.suptitle(title, fontsize=13, fontweight="bold")
    for index, (key, found) in enumerate(panels.items()):
        _draw_panel(figure.add_subplot(lines, columns, index + 1), key, list(runs), found)
    _save(figure, path)
    return True


# --- numbers ----------------------------------------------------------------------------------------------


def series_of(rows: Rows, key: str) -> list[Series]:
    """The metric and those that evaluators report under the same name: `test/<key>` of `<key>`."""
    names = dict.fromkeys(name for row in rows for name in row)
    evaluated = [name for name in names if name.partition("/")[2] == key]
    found = [Series(name, _points(rows, name), _is_test(name) or name != key) for name in [key, *evaluated]]
    return [series for series in found if series.points]


def _is_test(name: str) -> bool:
    return name.startswith(("test/", "eval"))


def _points(rows: Rows, key: str) -> list[tuple[int, float]]:
    """By step; of a step that a resumed run did again, the last row counts."""
    values = {int(row["step"]): _number(row[key]) for row in rows if key in row and "step" in row}
    return [(step, value) for step, value in sorted(values.items()) if math.isfinite(value)]


def _number(value: Any) -> float:
    """Rows of a file have "NaN" and "Infinity" as strings."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def smoothed(values: Sequence[float]) -> list[float]:
    """The mean of a tenth of the values around each, of fewer at the ends."""
    reach = max(2, len(values) // 20)
    return [fmean(values[max(0, k - reach) : k + reach + 1]) for k in range(len(values))]


# --- drawing ----------------------------------------------------------------------------------------------


def _draw_panel(axes: "Axes", key: str, runs: list[str], found: list[list[Series]]) -> None:
    for number, (run, some) in enumerate(zip(runs, found, strict=True)):
        for place, series in enumerate(some):
            colour = _COLOURS[(number if len(runs) > 1 else place) % len(_COLOURS)]
            _draw(axes, series, colour, _MARKERS[max(0, place - 1) % len(_MARKERS)], _label(run, series, key))
    axes.set_title(key, fontsize=10, loc="left")
    axes.set_xlabel("step")
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.locator_params(axis="x", integer=True)
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(fontsize=8, framealpha=0.85)


def _label(run: str, series: Series, key: str) -> str:
    name = series.name.partition("/")[0] if series.dots else "training"
    return " ".join(filter(None, [run, "" if run and series.name == key else name]))


def _draw(axes: "Axes", series: Series, colour: str, marker: str, label: str) -> None:
    steps, values = zip(*series.points, strict=True)
    if series.dots:
        axes.plot(
            steps,
            values,
            marker,
            color=colour,
            label=label,
            linestyle=":",
            linewidth=1,
            markersize=5,
            zorder=3,
        )
    elif len(values) < SMOOTHED_FROM:
        axes.plot(steps, values, color=colour, label=label, marker="." if len(values) == 1 else None)
    else:
        axes.plot(steps, values, color=colour, alpha=0.25, linewidth=1)
        axes.plot(steps, smoothed(values), color=colour, linewidth=2, label=label)


def _save(figure: "Figure", path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=130, bbox_inches="tight", pad_inches=0.15)


# --- the command ------------------------------------------------------------------------------------------


def read_runs(log_paths: Sequence[str]) -> dict[str, Rows]:
    """The metrics of each run under the name of its folder, with the folder above where two have one name."""
    parts = {path: path.rstrip("/").split("/") for path in log_paths}
    depth = 1
    while depth < 5 and len({tuple(some[-depth:]) for some in parts.values()}) < len(parts):
        depth += 1
    return {"/".join(some[-depth:]): _read_rows(path) for path, some in parts.items()}


def _read_rows(log_path: str) -> Rows:
    local = log_path.removeprefix("file://")
    if "://" not in local and not Path(local).is_dir():  # opening a store would make the folder
        raise ConfigurationError(f"there is no folder {local}; name the log_path of a run")
    rows = TrainingRunStore.from_uri(log_path).read_metrics()
    if not rows:
        raise ConfigurationError(f"{log_path} has no rows in metrics.jsonl; name the log_path of a run")
    return rows


def _present_keys(runs: Mapping[str, Rows], keys: Sequence[str]) -> list[str]:
    known = sorted({name for rows in runs.values() for row in rows for name in row} - {"step"})
    if not keys:
        keys = [key for key in DEFAULT_KEYS if key in known]
    unknown = [key for key in keys if key not in known]
    if unknown or not keys:
        raise ConfigurationError(
            f"no metric is called {', '.join(unknown) or DEFAULT_KEYS[0]}; give key=NAME, of these: {', '.join(known)}"
        )
    return list(keys)


def main(arguments: Sequence[str]) -> str:
    """Returns what to say: the path of the picture."""
    log_paths: list[str] = []
    options: dict[str, list[str]] = {"key": [], "out": [], "title": []}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if equals and name in options:
            options[name].append(value)
        else:
            log_paths.append(argument)
    if not log_paths:
        raise ConfigurationError(USAGE)
    runs = read_runs(log_paths)
    keys = _present_keys(runs, [key for value in options["key"] for key in value.split(",")])
    path = Path((options["out"] or ["curves.png"])[-1])
    title = (options["title"] or [next(iter(runs)) if len(runs) == 1 else f"{len(runs)} runs"])[-1]
    named = runs if len(runs) > 1 else {"": next(iter(runs.values()))}  # the title has the name
    if not save_comparison_png(named, path, keys=keys, title=title):
        raise ConfigurationError(f"{path} was not written: see the warning above")
    return str(path)


if __name__ == "__main__":
    try:
        print(main(sys.argv[1:]))
    except ConfigurationError as error:
        sys.exit(str(error))
