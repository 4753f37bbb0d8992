"""What a run changed: a metric where it began and where it ended."""

from tinker_cookbook.stores.storage import storage_for_reading
from tinker_cookbook.stores.training_store import TrainingRunStore


def before_and_after(log_path: str, metric: str) -> tuple[float, float] | None:
    """Its first and its last value in the rows of the run; None if there is none."""
    rows = TrainingRunStore(storage_for_reading(log_path)).read_metrics()
    values = [float(row[metric]) for row in rows if metric in row]
    return (values[0], values[-1]) if values else None


def change(log_path: str, metric: str, how: str = ".1%") -> str:
    """For people: `style/preferred 12.8% → 98.4%`. `how` numbers are written, as `format` takes it."""
    found = before_and_after(log_path, metric)
    if found is None:
        return f"{metric} was not measured"
    return f"{metric} {found[0]:{how}} → {found[1]:{how}}"
