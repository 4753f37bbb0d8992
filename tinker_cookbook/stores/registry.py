"""Which training runs are there, and how are they doing?"""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tinker_cookbook.exceptions import DataFormatError
from tinker_cookbook.stores._base import Storage, storage_join
from tinker_cookbook.stores.training_store import (
    CHECKPOINTS,
    CONFIG,
    METRICS,
    TIMING,
    TrainingRunStore,
)

if TYPE_CHECKING:
    from tinker_cookbook.stores.eval_store import EvalStore

Status = Literal["running", "completed", "idle"]
TrainingType = Literal["rl", "sl", "dpo"]

RUNNING_SECONDS = 120.0  # metrics younger than this: somebody is still writing them
_DEFAULT_EVAL_PREFIXES = ("eval", "eval_store", "")
_ITERATION = re.compile(r"iteration_\d+")
_TYPE_OF_MODULE: dict[str, TrainingType] = {
    "train_dpo": "dpo",
    "preference": "dpo",
    "rl": "rl",
    "supervised": "sl",
}
_TYPE_OF_KEY: dict[str, TrainingType] = {"dpo_beta": "dpo", "loss_fn": "rl", "num_epochs": "sl"}


@dataclass(frozen=True)
class RunInfo:
    """What the files of a run tell about it at a glance."""

    run_id: str
    prefix: str
    has_config: bool
    has_metrics: bool
    has_checkpoints: bool
    has_timing: bool
    iteration_count: int
    status: Status
    last_updated: float | None
    training_type: TrainingType | None


class RunRegistry:
    """The runs at the root of each storage and one level below it."""

    def __init__(
        self, storages: list[Storage], eval_prefixes: tuple[str, ...] = _DEFAULT_EVAL_PREFIXES
    ) -> None:
        self._storages = storages
        self._eval_prefixes = eval_prefixes
        self._runs: dict[str, tuple[RunInfo, Storage]] | None = None

    @property
    def storage_count(self) -> int:
        return len(self._storages)

    @property
    def primary_storage(self) -> Storage:
        return self._storages[0]

    def storage_for(self, run_id: str) -> Storage:
        return self._find(run_id)[1]

    def refresh(self) -> list[RunInfo]:
        """Look again. A name that an earlier storage has too becomes `<source>--<name>`."""
        runs: dict[str, tuple[RunInfo, Storage]] = {}
        for storage in self._storages:
            for prefix, names in _run_folders(storage):
                run_id = _unused_id(_last_name(prefix or storage.url()), _last_name(storage.url()), runs)
                runs[run_id] = (_describe(storage, run_id, prefix, names), storage)
        self._runs = runs
        return self.get_runs()

    def get_runs(self) -> list[RunInfo]:
        return [info for info, _ in self._known().values()]

    def get_run(self, run_id: str) -> RunInfo | None:
        found = self._known().get(run_id)
        return found[0] if found else None

    def get_training_store(self, run_id: str) -> TrainingRunStore:
        info, storage = self._find(run_id)
        return TrainingRunStore(storage, info.prefix)

    def get_eval_store(self) -> "EvalStore | None":
        from tinker_cookbook.stores.eval_store import EvalStore  # which needs the types of the benchmarks

        for storage in self._storages:
            for prefix in self._eval_prefixes:
                if storage.exists(storage_join(prefix, "runs.jsonl")):
                    return EvalStore(storage, prefix)
        return None

    def _known(self) -> dict[str, tuple[RunInfo, Storage]]:
        if self._runs is None:
            self.refresh()
        assert self._runs is not None
        return self._runs

    def _find(self, run_id: str) -> tuple[RunInfo, Storage]:
        known = self._known()
        if run_id not in known:
            names = ", ".join(known) or "none"
            raise KeyError(f"no run {run_id!r}; there are: {names} (refresh() looks again)")
        return known[run_id]


def _run_folders(storage: Storage) -> Iterator[tuple[str, list[str]]]:
    """Each folder that holds a run, with the names in it."""
    top = storage.list_dir("")
    for prefix in ["", *top]:
        names = storage.list_dir(prefix) if prefix else top
        if METRICS in names or CONFIG in names:
            yield prefix, names


def _unused_id(name: str, source: str, taken: dict[str, Any]) -> str:
    if name not in taken:
        return name
    candidate, number = f"{source}--{name}", 2
    while candidate in taken:  # two storages whose folders have the same name
        candidate, number = f"{source}-{number}--{name}", number + 1
    return candidate


def _last_name(path: str) -> str:
    return path.rstrip("/").rsplit("/", 1)[-1]


def _describe(storage: Storage, run_id: str, prefix: str, names: list[str]) -> RunInfo:
    changed = {name: _changed(storage, storage_join(prefix, name)) for name in (METRICS, CHECKPOINTS, CONFIG)}
    store = TrainingRunStore(storage, prefix)
    return RunInfo(
        run_id=run_id,
        prefix=prefix,
        has_config=CONFIG in names,
        has_metrics=METRICS in names,
        has_checkpoints=CHECKPOINTS in names,
        has_timing=TIMING in names,
        iteration_count=sum(bool(_ITERATION.fullmatch(name)) for name in names),
        status=_status(store, changed[METRICS], changed[CHECKPOINTS]),
        last_updated=max((when for when in changed.values() if when is not None), default=None),
        training_type=_training_type(store),
    )


def _changed(storage: Storage, path: str) -> float | None:
    stat = storage.stat(path)
    return stat.mtime if stat else None


def _status(store: TrainingRunStore, metrics: float | None, checkpoints: float | None) -> Status:
    """The last record says whether the run ended, unless a longer one has since gone on from there."""
    finished = checkpoints is not None and _is_final(store.read_checkpoints()[-1:])
    ended = checkpoints if finished and checkpoints is not None else 0.0
    if metrics is not None and metrics > ended and time.time() - metrics < RUNNING_SECONDS:
        return "running"
    return "completed" if finished else "idle"


def _is_final(last: list[dict[str, Any]]) -> bool:
    """Files of other writers of this format only have the name."""
    return any(record.get("final") or record.get("name") == "final" for record in last)


def _training_type(store: TrainingRunStore) -> TrainingType | None:
    try:
        config = store.read_config() or {}
    except DataFormatError:  # one broken file must not hide all the other runs
        return None
    modules = str(config.get("__class__", "")).split(".")
    for names, found in ((_TYPE_OF_MODULE, modules), (_TYPE_OF_KEY, config)):
        for name, kind in names.items():
            if name in found:
                return kind
    return None
