"""Evaluation runs: one folder per run, one folder per benchmark in it.

runs.jsonl                              one line per run when it starts and one when it ends, for quick looks
runs/<run_id>/metadata.json
runs/<run_id>/summary.json
runs/<run_id>/<benchmark>/result.json
runs/<run_id>/<benchmark>/trajectories.jsonl
"""

import asyncio
import uuid
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from tinker_cookbook.eval.benchmarks._types import BenchmarkResult, StoredTrajectory, known_fields
from tinker_cookbook.exceptions import ConfigurationError, EvalError
from tinker_cookbook.stores._base import Storage, in_thread, storage_join
from tinker_cookbook.stores._jsonl import LineAppender, read_json, read_jsonl, write_json
from tinker_cookbook.stores.storage import LocalStorage, storage_from_uri

_RUNS = "runs"
_INDEX = "runs.jsonl"
_METADATA = "metadata.json"
_SUMMARY = "summary.json"
_RESULT = "result.json"
_TRAJECTORIES = "trajectories.jsonl"


@dataclass
class RunMetadata:
    """What a run of benchmarks says about itself."""

    run_id: str
    model_name: str
    checkpoint_path: str | None
    checkpoint_name: str | None
    benchmarks: list[str]
    timestamp: str
    config: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> Self:
        return cls(**known_fields(cls, d))


class EvalStore:
    """Results and attempts of benchmarks, in one folder of a storage."""

    def __init__(self, storage_or_path: Storage | str | Path, prefix: str = "") -> None:
        if isinstance(storage_or_path, str | Path):
            storage_or_path = storage_from_uri(str(storage_or_path))
        self._storage: Storage = storage_or_path
        self._prefix = prefix
        self._appender = LineAppender(self._storage)

    def url(self, path: str = "") -> str:
        return self._storage.url(storage_join(self._prefix, path))

    def create_run(
        self,
        model_name: str,
        benchmarks: list[str],
        checkpoint_path: str | None = None,
        checkpoint_name: str | None = None,
        config: dict | None = None,
        run_id: str | None = None,
    ) -> str:
        now = datetime.now()
        metadata = RunMetadata(
            run_id=run_id or _new_id(checkpoint_name, now),
            model_name=model_name,
            checkpoint_path=checkpoint_path,
            checkpoint_name=checkpoint_name,
            benchmarks=list(benchmarks),
            timestamp=now.isoformat(),
            config=config or {},
        )
        self._write_metadata(metadata)
        return metadata.run_id

    def run_dir(self, run_id: str) -> str:
        if not isinstance(self._storage, LocalStorage):
            raise EvalError(
                f"{self.url()} has no local folder of a run; read it through the methods of EvalStore"
            )
        return self._storage.url(self._path(run_id))

    def finalize_run(self, run_id: str) -> RunMetadata:
        """Enter the scores of all benchmarks that have a result."""
        metadata = self.read_run(run_id)
        results = {name: self.read_result(run_id, name) for name in self.list_benchmarks(run_id)}
        metadata.scores = {name: result.score for name, result in results.items() if result is not None}
        self._write_metadata(metadata)
        return metadata

    def list_runs(self) -> list[RunMetadata]:
        """In reverse order of their names, so that of one checkpoint the newest comes first."""
        ids = self._storage.list_dir(storage_join(self._prefix, _RUNS))
        found = (read_json(self._storage, self._path(run_id, _METADATA)) for run_id in reversed(ids))
        return [RunMetadata.from_dict(metadata) for metadata in found if metadata is not None]

    def read_run(self, run_id: str) -> RunMetadata:
        metadata = read_json(self._storage, self._path(run_id, _METADATA))
        if metadata is None:
            raise FileNotFoundError(f"no run {run_id!r} in {self.url()}; list_runs() names those there are")
        return RunMetadata.from_dict(metadata)

    def list_benchmarks(self, run_id: str) -> list[str]:
        names = self._storage.list_dir(self._path(run_id))
        return [name for name in names if {_RESULT, _TRAJECTORIES} & {*self._names(run_id, name)}]

    def read_result(self, run_id: str, benchmark: str) -> BenchmarkResult | None:
        found = read_json(self._storage, self._path(run_id, benchmark, _RESULT))
        return None if found is None else BenchmarkResult.from_dict(found)

    def read_trajectories(
        self,
        run_id: str,
        benchmark: str,
        *,
        correct_only: bool = False,
        incorrect_only: bool = False,
        errors_only: bool = False,
    ) -> list[StoredTrajectory]:
        """As in the score, an attempt that ended in an error is also incorrect."""
        rows = read_jsonl(self._storage, self._path(run_id, benchmark, _TRAJECTORIES))
        return [
            trajectory
            for trajectory in map(StoredTrajectory.from_dict, rows)
            if (not correct_only or trajectory.reward > 0)
            and (not incorrect_only or trajectory.reward <= 0)
            and (not errors_only or trajectory.error is not None)
        ]

    def read_single_trajectory(self, run_id: str, benchmark: str, idx: int) -> StoredTrajectory | None:
        """The newest, if the example was tried again."""
        found = reversed(self.read_trajectories(run_id, benchmark))
        return next((trajectory for trajectory in found if trajectory.idx == idx), None)

    def read_summary(self, run_id: str) -> dict[str, Any] | None:
        return read_json(self._storage, self._path(run_id, _SUMMARY))

    def write_result(self, run_id: str, result: BenchmarkResult) -> None:
        """Flushes: the trajectories of this result belong with it."""
        write_json(self._storage, self._path(run_id, result.name, _RESULT), {**result.to_dict()})
        self._storage.flush()

    def write_trajectory(self, run_id: str, benchmark: str, traj: StoredTrajectory) -> None:
        self._appender.append(self._path(run_id, benchmark, _TRAJECTORIES), {**traj.to_dict()})

    def write_summary(self, run_id: str, results: dict[str, BenchmarkResult]) -> None:
        summary = {name: result.to_dict() for name, result in results.items()}
        write_json(self._storage, self._path(run_id, _SUMMARY), summary)

    def delete_run(self, run_id: str) -> None:
        self._storage.remove_dir(self._path(run_id))

    alist_runs = in_thread(list_runs)
    aread_result = in_thread(read_result)

    async def aread_trajectories(self, run_id: str, benchmark: str, **kw: bool) -> list[StoredTrajectory]:
        return await asyncio.to_thread(self.read_trajectories, run_id, benchmark, **kw)

    def _write_metadata(self, metadata: RunMetadata) -> None:
        write_json(self._storage, self._path(metadata.run_id, _METADATA), metadata.to_dict())
        self._appender.append(storage_join(self._prefix, _INDEX), metadata.to_dict())
        self._storage.flush()

    def _path(self, run_id: str, *names: str) -> str:
        for name in (run_id, *names):
            if name in ("", ".", "..") or "/" in name:  # delete_run("") would delete all of them
                raise ConfigurationError(
                    f"{name!r} cannot be the name of a run or a benchmark: it must name one folder"
                )
        return storage_join(self._prefix, _RUNS, run_id, *names)

    def _names(self, run_id: str, benchmark: str) -> list[str]:
        return self._storage.list_dir(self._path(run_id, benchmark))


def _new_id(checkpoint_name: str | None, now: datetime) -> str:
    return f"{checkpoint_name or 'base'}_{now:%Y%m%d_%H%M%S}_{uuid.uuid4().hex[:6]}"
