"""The files of training runs and evaluations, on this machine or in an object store.

`EvalStore` is in `stores.eval_store`: it needs the types of the benchmarks, which need the stores.
"""

from tinker_cookbook.stores._incremental import IncrementalReader
from tinker_cookbook.stores.registry import RunInfo, RunRegistry
from tinker_cookbook.stores.storage import (
    AsyncStorage,
    FsspecStorage,
    LocalStorage,
    Storage,
    StorageStat,
    storage_from_uri,
    storage_join,
)
from tinker_cookbook.stores.training_store import TrainingRunStore

__all__ = [
    "AsyncStorage",
    "FsspecStorage",
    "IncrementalReader",
    "LocalStorage",
    "RunInfo",
    "RunRegistry",
    "Storage",
    "StorageStat",
    "TrainingRunStore",
    "storage_from_uri",
    "storage_join",
]
