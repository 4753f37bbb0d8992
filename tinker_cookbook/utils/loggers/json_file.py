"""The record of a run: config.json, code.diff and metrics.jsonl, on a disk or in a bucket.

A resumed run appends to the metrics.jsonl it finds, and repeats the steps since its checkpoint. Every row it writes has
one number more, `"resumed": n` (n-th resumption; rows of the first start have none), so that each reader sees whole
rows with a step, `drop_duplicates("step", keep="last")` keeps what counts, and `resumed` tells which start wrote it.
"""

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinker_cookbook.utils.code_state import code_state
from tinker_cookbook.utils.config_dump import dump_config
from tinker_cookbook.utils.loggers.base import Logger

if TYPE_CHECKING:
    from tinker_cookbook.stores import TrainingRunStore

logger = logging.getLogger(__name__)

RESUMED = "resumed"
FLUSH_SECONDS = 60.0
"""A bucket takes whole files: rows wait on this machine, and no longer than this (a disk has them at once)."""


class JsonLogger(Logger):
    """`log_dir` may be a path or a URI such as s3://bucket/run. Errors of writing are raised: this is the record."""

    essential = True

    def __init__(self, log_dir: str | Path, store: "TrainingRunStore | None" = None) -> None:
        self._store = store if store is not None else _open_store(log_dir)
        self._resumed = _starts_before(self._store)
        self._wrote_config = False
        self._flushed_at = time.monotonic()
        if self._resumed:
            logger.info('rows of this start are marked "%s": %d in metrics.jsonl', RESUMED, self._resumed)

    @property
    def store(self) -> "TrainingRunStore":
        return self._store

    def log_hparams(self, config: Any) -> None:
        if self._wrote_config:
            logger.warning("config.json of this run was written before; the second config is not written")
            return
        as_json = dump_config(config)
        self._store.write_config(as_json if isinstance(as_json, dict) else {"config": as_json})
        self._store.write_code_diff(code_state(("tinker_cookbook", "__main__")))
        self._wrote_config = True
        self.sync()

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        marker = {RESUMED: self._resumed} if self._resumed else {}
        self._store.write_metrics({**metrics, **marker}, step=step)
        if time.monotonic() - self._flushed_at > FLUSH_SECONDS:
            self._flush_or_warn()

    def sync(self) -> None:
        self._store.flush()
        self._flushed_at = time.monotonic()

    def _flush_or_warn(self) -> None:
        """A bucket out of reach for a moment ends no run: the rows stay held, and `close` raises if it is so still."""
        try:
            self._store.flush()
        except Exception:  # each kind of bucket has errors of its own
            logger.warning("could not write the metrics out; will try again", exc_info=True)
        self._flushed_at = time.monotonic()

    def close(self) -> None:
        self.sync()


def _open_store(log_dir: str | Path) -> "TrainingRunStore":
    from tinker_cookbook.stores import TrainingRunStore, storage_from_uri

    return TrainingRunStore(storage_from_uri(str(log_dir)))


def _starts_before(store: "TrainingRunStore") -> int:
    """How many processes have written metrics here."""
    marks = [row.get(RESUMED) for row in store.read_metrics()]
    return 1 + max(mark if isinstance(mark, int) else 0 for mark in marks) if marks else 0
