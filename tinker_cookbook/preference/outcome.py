"""What a run on preferences has come to, in a line."""

from typing import Any

from tinker_cookbook.stores import TrainingRunStore
from tinker_cookbook.stores.storage import storage_for_reading

_NOTHING = 1e-4  # of a margin: what two ways to compute the same logprobs may differ by


def outcome(log_path: str) -> str:
    """Accuracy and margin at the first and the last measurement: of what is held out, else of the batches."""
    rows = TrainingRunStore(storage_for_reading(log_path)).read_metrics()
    for prefix, what in (("test/", "held-out preferences"), ("", "batches trained on")):
        measured = [row for row in rows if f"{prefix}accuracy" in row]
        if measured:
            return _before_and_after(measured[0], measured[-1], prefix, what)
    return "nothing was measured"


def _before_and_after(before: dict[str, Any], after: dict[str, Any], prefix: str, what: str) -> str:
    changes = [
        f"{name} {before[key]:z.3f} → {after[key]:z.3f}"
        for name in ("accuracy", "margin")
        if (key := f"{prefix}{name}") in before and key in after
    ]
    line = f"{what}, step {before['step']} → {after['step']}: {', '.join(changes)}"
    if abs(before.get(f"{prefix}margin", 1.0)) < _NOTHING:
        line += " (a model that is its own reference tells nothing apart yet)"
    return line
