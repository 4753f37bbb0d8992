"""Scores answers as reasoning-gym does; in a process that can be killed, see `bounded_calls`."""

import functools
import json
from typing import Any

import reasoning_gym  # pyright: ignore[reportMissingImports]


def score(task: str, config: str, answer: str, entry: dict[str, Any]) -> float:
    """`config` is JSON, so that data sets can be kept."""
    return float(_dataset(task, config).score_answer(answer, entry))


@functools.lru_cache(maxsize=64)
def _dataset(task: str, config: str) -> Any:
    create: Any = reasoning_gym.create_dataset  # pyright: ignore[reportAttributeAccessIssue]
    return create(task, size=1, seed=0, **json.loads(config))
