"""Speeds over the last seconds, from counters that the compute process reports now and then."""

from collections import deque
from collections.abc import Mapping

WINDOW_SECONDS = 10.0

_COUNTERS = ("trained_tokens", "sampled_tokens", "prompt_tokens", "decode_steps", "decode_rows")


class Rates:
    def __init__(self) -> None:
        self._reports: deque[tuple[float, dict[str, float]]] = deque()

    def add(self, now: float, counters: Mapping[str, float]) -> None:
        report = {name: counters.get(name, 0.0) for name in _COUNTERS}
        if self._reports and any(report[name] < last for name, last in self._reports[-1][1].items()):
            self._reports.clear()  # another process counts, from zero
        self._reports.append((now, report))
        self._trim(now)

    def at(self, now: float) -> dict[str, float]:
        """Tokens per second, and the mean number of rows of a decode step. Between reports nothing is known to
        have happened: an engine that went idle is seen to slow down, not to keep its last speed."""
        self._trim(now)
        if not self._reports:
            return {"trained_tokens": 0.0, "sampled_tokens": 0.0, "prompt_tokens": 0.0, "batch": 0.0}
        (begin, first), (_, last) = self._reports[0], self._reports[-1]
        seconds = min(max(now - begin, 1.0), WINDOW_SECONDS)
        grown = {name: last[name] - first[name] for name in _COUNTERS}
        return {
            "trained_tokens": grown["trained_tokens"] / seconds,
            "sampled_tokens": grown["sampled_tokens"] / seconds,
            "prompt_tokens": grown["prompt_tokens"] / seconds,
            "batch": grown["decode_rows"] / max(1.0, grown["decode_steps"]),
        }

    def _trim(self, now: float) -> None:
        """Keep one report from before the window: the count at its beginning."""
        while len(self._reports) > 1 and self._reports[1][0] <= now - WINDOW_SECONDS:
            self._reports.popleft()
