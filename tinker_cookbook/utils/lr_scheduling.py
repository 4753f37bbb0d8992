"""The learning rate over the steps of a run, as a factor of its peak."""

import math
from typing import Literal, get_args

from tinker_cookbook.exceptions import ConfigurationError

LRSchedule = Literal["linear", "cosine", "constant"]


def compute_schedule_lr_multiplier(
    lr_schedule: LRSchedule, step: int, total_steps: int, warmup_steps: int = 0
) -> float:
    """The factor at `step`, counted from 0.

    Warm-up rises by equal amounts, from 1/warmup_steps at step 0 to 1 at its last step; the schedule then runs over the
    steps that remain, from 1 towards 0. Past the end it stays where it ended.
    """
    _check(lr_schedule, step, total_steps, warmup_steps)
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    done = min(1.0, (step - warmup_steps) / (total_steps - warmup_steps))
    match lr_schedule:
        case "linear":
            return 1 - done
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * done))
        case "constant":
            return 1.0


def _check(lr_schedule: str, step: int, total_steps: int, warmup_steps: int) -> None:
    if lr_schedule not in get_args(LRSchedule):
        raise ConfigurationError(
            f"no learning rate schedule {lr_schedule!r}; use {', '.join(get_args(LRSchedule))}"
        )
    if total_steps <= 0:
        raise ConfigurationError(f"a schedule needs at least one step, not total_steps={total_steps}")
    if step < 0:
        raise ConfigurationError(f"steps count from 0, not step={step}")
    if not 0 <= warmup_steps < total_steps:
        raise ConfigurationError(
            f"warmup_steps={warmup_steps} must be at least 0 and less than total_steps={total_steps}"
        )
