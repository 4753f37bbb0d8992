"""The spans of one training iteration: metrics, rows for a file, spans of other processes."""

import contextlib
import json
import time
from collections.abc import Generator, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinker_cookbook.utils.context_vars import bound

if TYPE_CHECKING:
    from tinker_cookbook.stores.training_store import TrainingRunStore


@dataclass
class SpanRecord:
    """`start_time` and `end_time` are of this process's clock (`time.perf_counter`), the walls of everyone's."""

    name: str
    start_time: float
    end_time: float
    wall_start: float
    wall_end: float

    @property
    def duration(self) -> float:
        return self.end_time - self.start_time


class IterationWindow:
    """Collects spans; threads may add to it at the same time."""

    def __init__(self) -> None:
        self._clock_start = time.perf_counter()
        self._wall_start = time.time()
        self.spans: list[SpanRecord] = []
        self.total_time: float | None = None

    @property
    def elapsed(self) -> float:
        """Seconds since it was opened."""
        return time.perf_counter() - self._clock_start

    def record_span(self, name: str, start_time: float, end_time: float) -> None:
        """Times of `time.perf_counter`."""
        offset = self._wall_start - self._clock_start
        self.spans.append(SpanRecord(name, start_time, end_time, start_time + offset, end_time + offset))

    def merge_spans(self, spans: Iterable[SpanRecord]) -> None:
        """Take over spans of a worker (`window.spans` there, which can be pickled).

        Another process has another clock: the wall times say where its spans go on ours.
        """
        offset = self._clock_start - self._wall_start
        for span in spans:
            start = span.wall_start + offset
            self.spans.append(replace(span, start_time=start, end_time=start + span.duration))

    def aggregate(self) -> dict[str, float]:
        """`time/<name>` of a name that occurred once, else its total, count, mean and max."""
        durations: dict[str, list[float]] = {}
        for span in list(self.spans):
            durations.setdefault(span.name, []).append(span.duration)
        metrics: dict[str, float] = {}
        for name, values in durations.items():
            metrics.update(_summary(f"time/{name}", values))
        if self.total_time is not None:
            metrics["time/total"] = self.total_time
        return metrics

    def get_timing_metrics(self) -> dict[str, float]:
        return self.aggregate()

    def get_span_records(self) -> list[dict[str, Any]]:
        """Rows for a file, by their start, in seconds since the first of them."""
        spans = sorted(self.spans, key=lambda span: span.wall_start)
        return [
            {
                "name": span.name,
                "duration": span.duration,
                "wall_start": span.wall_start - spans[0].wall_start,
                "wall_end": span.wall_end - spans[0].wall_start,
            }
            for span in spans
        ]

    def get_span_dicts(self) -> list[dict[str, Any]]:
        """The same rows: both names are in use. `spans` has them with absolute times."""
        return self.get_span_records()

    def write_spans_jsonl(self, path: Path | str, step: int) -> None:
        """Append a line; none if there are no spans."""
        spans = self.get_span_records()
        if spans:
            path = Path(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, "spans": spans}) + "\n")

    def save_timing(self, step: int, *, store: "TrainingRunStore | None") -> None:
        if store is not None:
            store.write_timing_spans(step, self.get_span_records())


def _summary(key: str, values: list[float]) -> dict[str, float]:
    if len(values) == 1:
        return {key: values[0]}
    total = sum(values)
    return {
        f"{key}:total": total,
        f"{key}:count": float(len(values)),
        f"{key}:mean": total / len(values),
        f"{key}:max": max(values),
    }


_window: ContextVar[IterationWindow | None] = ContextVar("trace_window", default=None)


def current_window() -> IterationWindow | None:
    """The window that spans are collected into now; None outside of one."""
    return _window.get()


@contextlib.contextmanager
def collect_into(window: IterationWindow) -> Generator[IterationWindow, None, None]:
    """Spans of this block go to `window`: for a step whose work is spread over several blocks."""
    with bound(_window, window):
        yield window
