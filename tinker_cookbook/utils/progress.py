"""How far a run has come, for the person who waits for it."""

import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

logger = logging.getLogger(__name__)


class Progress:
    """A bar on a terminal, a line for each step elsewhere: a metric, tokens per second, the time that is left."""

    def __init__(
        self, first: int, total: int, headline: str | None, *, clock: Callable[[], float] = time.monotonic
    ):
        self._done = self._first = first
        self._total = total
        self._headline = headline
        self._clock = clock
        self._started = clock()
        self._tokens = 0
        self._bar = tqdm(total=total, initial=first, unit="step", disable=not sys.stderr.isatty())
        self._redirect = logging_redirect_tqdm()
        self._redirect.__enter__()

    def update(self, done: int, metrics: Mapping[str, Any], tokens: int) -> None:
        """`done` steps are finished."""
        self._tokens += tokens
        self._bar.update(done - self._done)
        self._done = done
        self._bar.set_postfix_str(", ".join(self._figures(metrics)))
        if self._bar.disable:
            logger.info(
                "step %d of %d: %s", done, self._total, ", ".join([*self._figures(metrics), self._left()])
            )

    def expect(self, total: int) -> None:
        """So many steps, and not as many as was thought before."""
        self._bar.total = self._total = total

    def close(self) -> None:
        self._bar.close()
        self._redirect.__exit__(None, None, None)

    def _figures(self, metrics: Mapping[str, Any]) -> list[str]:
        figures: list[str] = []
        value = metrics.get(self._headline) if self._headline else None
        if isinstance(value, int | float):
            figures.append(f"{_label(str(self._headline))} {value:.3g}")
        seconds = self._clock() - self._started
        if self._tokens and seconds > 0:
            figures.append(f"{self._tokens / seconds:,.0f} tokens/s")
        return figures

    def _left(self) -> str:
        per_step = (self._clock() - self._started) / max(1, self._done - self._first)
        return f"{duration(per_step * (self._total - self._done))} left"


def _label(key: str) -> str:
    """What the metric is of: `test/nll` is the nll, and the total or mean of a thing goes by the thing's name."""
    *path, name = key.split("/")
    return path[-1] if path and name in ("total", "mean") else name


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
