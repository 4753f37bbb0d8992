"""What came out of a sweep: rows, a table, a CSV file, and the best run for each rank."""

import csv
import json
import math
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.chat_sl.sweep.record import RECORD, RunRecord
from tinker_cookbook.stores import TrainingRunStore
from tinker_cookbook.stores.storage import storage_for_reading

if TYPE_CHECKING:
    import pandas  # pyright: ignore[reportMissingImports]

Row = dict[str, Any]
Table: TypeAlias = "list[Row] | pandas.DataFrame"
LOSSES = ("test/nll", "train_mean_nll")  # the first that the runs have is the one to compare them by


def collect(sweep_dir: str) -> Table:
    """One row per run under the folder: its settings, how it ended, and the last value of each of its metrics."""
    return as_table(collect_rows(sweep_dir))


def as_table(rows: list[Row]) -> Table:
    try:
        import pandas  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError:
        return rows
    return pandas.DataFrame(rows)


def collect_rows(sweep_dir: str | Path) -> list[Row]:
    """The same without pandas, in the order of the settings."""
    folder = Path(sweep_dir).expanduser()
    if not folder.is_dir():
        raise ConfigurationError(f"there is no sweep in {folder}: it is not a folder")
    rows = [_row(path.parent) for path in sorted(folder.glob(f"*/{RECORD}"))]
    return sorted(rows, key=lambda row: [_sortable(row[axis]) for axis in axes_of([row])])


def _row(folder: Path) -> Row:
    record = RunRecord.read(folder)
    assert record is not None, "globbed for"
    metrics: Row = {}
    steps = TrainingRunStore(storage_for_reading(str(folder))).read_metrics()
    for step in sorted(steps, key=lambda row: row.get("step", 0)):  # stable: rows of a resumed run come last
        metrics |= {key: value for key, value in step.items() if key != "resumed"}
    state = {"name": record.name, "status": record.status, "error": record.error, "log_path": str(folder)}
    return {**state, "axes": list(record.point), **metrics, **record.point, "seconds": record.seconds}


def _sortable(value: Any) -> tuple[int, float, str]:
    return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value))


def axes_of(rows: Sequence[Row]) -> list[str]:
    """All settings that some run was given, in the order of the grid."""
    return list(dict.fromkeys(axis for row in rows for axis in row["axes"]))


def choose_metric(rows: Sequence[Row], metric: str | None) -> str:
    """The one that was asked for, else the loss on held-out data, else that on the training data."""
    known = {key for row in rows for key in row}
    wanted = LOSSES if metric is None else (metric,)
    if found := next((each for each in wanted if each in known), None):
        return found
    numbers = sorted(key for key in known if any(isinstance(row.get(key), int | float) for row in rows))
    raise ConfigurationError(f"no run has {' or '.join(wanted)}; metric= can be: {', '.join(numbers)}")


def value_of(row: Row, metric: str) -> float | None:
    """None for a run that did not get to the end, or whose loss is no number any more."""
    value = row.get(metric)
    if row["status"] != "done" or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


# --- what is written --------------------------------------------------------------------------------------


def text_table(rows: Sequence[Row], metric: str) -> str:
    """For a terminal: settings, steps, the metric (the best one marked) and how the run ended."""
    best = best_of(rows, metric)
    head = [*axes_of(rows), "steps", metric, "seconds", "status"]
    lines = [head]
    for row in rows:
        value = row.get(metric)
        shown = f"{value:.4f}" if isinstance(value, float) else str(value if value is not None else "-")
        mark = " *" if best is not None and row["name"] == best["name"] else ""
        cells = [_cell(row.get(axis)) for axis in axes_of(rows)]
        lines.append(
            [*cells, _cell(row.get("step")), shown + mark, f"{row['seconds']:.0f}", _status(row, metric)]
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _status(row: Row, metric: str) -> str:
    if row["status"] == "done" and value_of(row, metric) is None:
        return f"diverged: {metric} is {row.get(metric)}" if metric in row else f"has no {metric}"
    if row["status"] == "running":
        return "running, or was stopped"
    return f"failed: {row['error']}" if row["status"] == "failed" else row["status"]


def csv_text(rows: Sequence[Row]) -> str:
    """Every column that any run has."""
    columns = [key for key in dict.fromkeys(key for row in rows for key in row) if key != "axes"]
    out = StringIO()
    writer = csv.DictWriter(out, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def best_of(rows: Sequence[Row], metric: str) -> Row | None:
    """The lowest: a metric to sweep by is a loss."""
    finished = [(value, i) for i, row in enumerate(rows) if (value := value_of(row, metric)) is not None]
    return rows[min(finished)[1]] if finished else None


def recommendations(rows: Sequence[Row], metric: str) -> Row:
    """The best run of all, the best for each value of each axis, and those that gave no figure."""
    return {
        "metric": metric,
        "best": _settings(best_of(rows, metric), metric),
        **{f"best_per_{axis}": _best_per(rows, axis, metric) for axis in axes_of(rows)},
        "without_a_figure": {
            row["name"]: _status(row, metric) for row in rows if value_of(row, metric) is None
        },
    }


def _best_per(rows: Sequence[Row], axis: str, metric: str) -> Row:
    values = dict.fromkeys(row.get(axis) for row in rows)
    return {
        _cell(value): _settings(best_of([row for row in rows if row.get(axis) == value], metric), metric)
        for value in values
    }


def _settings(row: Row | None, metric: str) -> Row | None:
    if row is None:
        return None
    return {"name": row["name"], metric: row[metric], **{axis: row[axis] for axis in row["axes"]}}


def recommendations_text(rows: Sequence[Row], metric: str) -> str:
    return json.dumps(recommendations(rows, metric), indent=2) + "\n"
