"""What a run left behind."""

import json
from pathlib import Path
from typing import Any


def metrics_of(log_path: str | Path) -> list[dict[str, Any]]:
    lines = (Path(log_path) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def checkpoints_of(log_path: str | Path) -> list[dict[str, Any]]:
    lines = (Path(log_path) / "checkpoints.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def last_value(log_path: str | Path, metric: str) -> float:
    return next(row[metric] for row in reversed(metrics_of(log_path)) if metric in row)
