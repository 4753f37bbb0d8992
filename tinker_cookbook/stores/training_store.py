"""The files of one training run, as the trainers write them and tools read them."""

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from tinker_cookbook.stores._base import Storage, StorageStat, in_thread, storage_join
from tinker_cookbook.stores._incremental import IncrementalReader
from tinker_cookbook.stores._jsonl import LineAppender, Row, encode_lines, read_json, read_jsonl, write_json
from tinker_cookbook.stores.storage import storage_from_uri

if TYPE_CHECKING:
    from tinker_cookbook.checkpoint_utils import CheckpointRecord

CONFIG = "config.json"
CODE_DIFF = "code.diff"
METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints.jsonl"
TIMING = "timing_spans.jsonl"

_ITERATION = re.compile(r"iteration_(\d+)")
_ROLLOUTS_END = "_rollout_summaries.jsonl"
_LOGTREE_END = "_logtree.json"


@dataclass
class IterationInfo:
    """What was written about one step."""

    iteration: int
    has_train_rollouts: bool = False
    has_train_logtree: bool = False
    eval_labels: list[str] = field(default_factory=list)


class TrainingRunStore:
    """Missing files read as None or as an empty list."""

    def __init__(self, storage: Storage, prefix: str = "") -> None:
        self._storage = storage
        self._prefix = prefix
        self._appender = LineAppender(storage)
        self._new_metrics = IncrementalReader(storage, self._path(METRICS))
        self._last_rollouts: tuple[str, StorageStat, list[Row]] | None = None

    @classmethod
    def from_uri(cls, uri: str) -> Self:
        return cls(storage_from_uri(uri))

    def url(self, path: str = "") -> str:
        return self._storage.url(self._path(path))

    def read_config(self) -> Row | None:
        return read_json(self._storage, self._path(CONFIG))

    def write_config(self, config: Row) -> None:
        write_json(self._storage, self._path(CONFIG), config)

    def write_code_diff(self, diff: str) -> None:
        self._storage.write(self._path(CODE_DIFF), diff.encode())

    def read_metrics(self) -> list[Row]:
        return read_jsonl(self._storage, self._path(METRICS))

    def read_new_metrics(self) -> list[Row]:
        """The rows completed since the last call."""
        return self._new_metrics.read()

    def metric_keys(self) -> set[str]:
        return {key for row in self.read_metrics() for key in row} - {"step"}

    def write_metrics(self, metrics: Row, step: int | None = None) -> None:
        row = metrics if step is None else {"step": step, **metrics}
        self._appender.append(self._path(METRICS), row)

    def read_timing(self) -> list[Row]:
        return read_jsonl(self._storage, self._path(TIMING))

    def write_timing_spans(self, step: int, spans: list[Row]) -> None:
        if spans:
            self._appender.append(self._path(TIMING), {"step": step, "spans": spans})

    def read_checkpoints(self) -> list[Row]:
        return read_jsonl(self._storage, self._path(CHECKPOINTS))

    def read_checkpoint_records(self) -> "list[CheckpointRecord]":
        from tinker_cookbook.checkpoint_utils import CheckpointRecord  # which imports the stores

        return [CheckpointRecord.from_dict(row) for row in self.read_checkpoints()]

    def write_checkpoint(self, record: Row) -> None:
        """Flushes: a run that is killed resumes here, and repeats whatever it logged later."""
        self._appender.append(self._path(CHECKPOINTS), record)
        self.flush()

    def read_rollouts(self, iteration: int, base_name: str = "train") -> list[Row]:
        """Keeps the file read last, for callers that go through it one by one."""
        path = self._iteration_path(iteration, base_name + _ROLLOUTS_END)
        stat = self._storage.stat(path)
        if stat is None:
            return []
        if self._last_rollouts is None or self._last_rollouts[:2] != (path, stat):
            self._last_rollouts = (path, stat, read_jsonl(self._storage, path))
        return list(self._last_rollouts[2])

    def read_single_rollout(
        self, iteration: int, group_idx: int, traj_idx: int, base_name: str = "train"
    ) -> Row | None:
        rows = self.read_rollouts(iteration, base_name)
        wanted = (group_idx, traj_idx)
        return next((row for row in rows if (row.get("group_idx"), row.get("traj_idx")) == wanted), None)

    def write_rollouts(self, iteration: int, records: list[Row], base_name: str = "train") -> None:
        """Replaces the file: an iteration that a resumed run repeats counts once."""
        self._storage.write(self._iteration_path(iteration, base_name + _ROLLOUTS_END), encode_lines(records))
        self._last_rollouts = None

    def read_logtree(self, iteration: int, base_name: str = "train") -> Row | None:
        return read_json(self._storage, self._iteration_path(iteration, base_name + _LOGTREE_END))

    def write_logtree(self, iteration: int, data: Row, base_name: str = "train") -> None:
        write_json(self._storage, self._iteration_path(iteration, base_name + _LOGTREE_END), data)

    def list_logtrees(self, iteration: int) -> list[str]:
        """The base names, such as "train" and "eval_gsm8k"."""
        names = self._storage.list_dir(self._iteration_path(iteration))
        return [name.removesuffix(_LOGTREE_END) for name in names if name.endswith(_LOGTREE_END)]

    def list_iterations(self) -> list[IterationInfo]:
        found = map(_ITERATION.fullmatch, self._storage.list_dir(self._path()))
        return [self._iteration_info(int(match[1])) for match in found if match]

    def flush(self) -> None:
        self._storage.flush()

    def close(self) -> None:
        self.flush()

    aread_config = in_thread(read_config)
    aread_metrics = in_thread(read_metrics)
    aread_new_metrics = in_thread(read_new_metrics)
    aread_rollouts = in_thread(read_rollouts)
    aread_checkpoints = in_thread(read_checkpoints)
    aread_timing = in_thread(read_timing)
    aread_logtree = in_thread(read_logtree)
    awrite_metrics = in_thread(write_metrics)
    awrite_checkpoint = in_thread(write_checkpoint)

    def _path(self, *names: str) -> str:
        return storage_join(self._prefix, *names)

    def _iteration_path(self, iteration: int, name: str = "") -> str:
        return self._path(f"iteration_{iteration:06d}", name)

    def _iteration_info(self, iteration: int) -> IterationInfo:
        names = self._storage.list_dir(self._iteration_path(iteration))
        ends = (_ROLLOUTS_END, _LOGTREE_END)
        bases = {name.removesuffix(end) for name in names for end in ends if name.endswith(end)}
        return IterationInfo(
            iteration=iteration,
            has_train_rollouts="train" + _ROLLOUTS_END in names,
            has_train_logtree="train" + _LOGTREE_END in names,
            eval_labels=sorted(base.removeprefix("eval_") for base in bases if base.startswith("eval_")),
        )
