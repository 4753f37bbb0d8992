"""What is written down about a checkpoint: one line of `checkpoints.jsonl`."""

import logging
from dataclasses import dataclass, field
from typing import Any, Self

from tinker_cookbook.exceptions import CheckpointError
from tinker_cookbook.stores.storage import storage_for_reading
from tinker_cookbook.stores.training_store import CHECKPOINTS, TrainingRunStore

logger = logging.getLogger(__name__)

CHECKPOINTS_BASE_NAME = CHECKPOINTS

_KNOWN = ("name", "batch", "epoch", "final", "state_path", "sampler_path")
_MISSING = object()


@dataclass
class CheckpointRecord:
    """`batch` and `epoch` are where to go on: the next batch to run, not the last one that ran."""

    name: str
    batch: int | None = None
    epoch: int | None = None
    final: bool | None = None
    state_path: str | None = None
    sampler_path: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """One flat object, without what is None."""
        hidden = sorted(set(self.extra) & set(_KNOWN))
        if hidden:
            logger.warning(
                "checkpoint %s: leaving out extras named like its own fields: %s", self.name, hidden
            )
        known = {key: value for key in _KNOWN if (value := getattr(self, key)) is not None}
        return known | {key: value for key, value in self.extra.items() if key not in _KNOWN}

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> Self:
        """Takes records of other versions: what it does not know is in `extra`, and is written back."""
        if "name" not in d:
            raise CheckpointError(f"a record of a checkpoint needs a name: {d}")
        known = {key: d[key] for key in _KNOWN if key in d}
        return cls(**known, extra={key: value for key, value in d.items() if key not in _KNOWN})

    def has(self, key: str) -> bool:
        return getattr(self, key) is not None if key in _KNOWN else key in self.extra

    def get(self, key: str, default: Any = _MISSING) -> Any:
        """A field, even if it is None, or an extra; an extra that is not there gives the default."""
        if key in _KNOWN:
            return getattr(self, key)
        if key not in self.extra and default is _MISSING:
            raise KeyError(f"checkpoint {self.name} has no {key!r}; it has {sorted(self.to_dict())}")
        return self.extra.get(key, default)


def load_checkpoints_file(log_dir: str) -> list[CheckpointRecord]:
    """All records of a run, in the order of saving; empty if it has none. `log_dir` may be a URI."""
    return TrainingRunStore(storage_for_reading(log_dir)).read_checkpoint_records()


def get_last_checkpoint(log_dir: str, required_key: str = "state_path") -> CheckpointRecord | None:
    """The last record that has the key, whether or not the server still has the checkpoint.

    To resume, use `find_resume_checkpoint`, which asks the server.
    """
    records = reversed(load_checkpoints_file(log_dir))
    return next((record for record in records if record.has(required_key)), None)
