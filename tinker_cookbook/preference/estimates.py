"""Means of a few measurements, and how far to trust them."""

import math
import statistics
from collections.abc import Sequence


def mean_and_stderr(values: Sequence[float]) -> tuple[float, float]:
    """The standard error is 0 for a single value, of which nothing is known."""
    if not values:
        return math.nan, math.nan
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return statistics.fmean(values), spread / math.sqrt(len(values))
