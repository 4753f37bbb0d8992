"""How much of the time was spent sampling, how much training, and how much doing neither."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Activity:
    """Counts what is under way at each moment; sampling and training may overlap."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._since = self._started = clock()
        self._running = {"sampling": 0, "training": 0}
        self._seconds = {"sampling": 0.0, "training": 0.0, "waiting": 0.0}

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        self.begin(what)
        try:
            yield
        finally:
            self.end(what)

    def begin(self, what: str) -> None:
        self._count()
        self._running[what] += 1

    def end(self, what: str) -> None:
        self._count()
        self._running[what] -= 1

    def fractions(self) -> dict[str, float]:
        """Of the time since the last call."""
        self._count()
        total = max(self._since - self._started, 1e-9)
        shares = {f"time/frac_{what}": seconds / total for what, seconds in self._seconds.items()}
        self._started = self._since
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        return shares

    def _count(self) -> None:
        now = self._clock()
        busy = [what for what, count in self._running.items() if count]
        for what in busy or ["waiting"]:
            self._seconds[what] += now - self._since
        self._since = now
