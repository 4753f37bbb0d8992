"""Run every point of a grid, some at a time, against one server."""

import asyncio
import inspect
import logging
import multiprocessing
import os
import pickle
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import chz

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.chat_sl.sweep.points import NameFn, Point, check_axes, grid, named_points
from tinker_cookbook.recipes.chat_sl.sweep.record import RunRecord
from tinker_cookbook.recipes.chat_sl.sweep.results import Table, as_table, collect_rows
from tinker_cookbook.recipes.launch import example_path

logger = logging.getLogger(__name__)

MainFn = Callable[[Any], Any]
OUTPUT, ERROR = "output.log", "error.txt"


def run(
    main_fn: MainFn,
    base_config: Any,
    *,
    sweep_dir: str | None = None,
    max_parallel: int = 1,
    executor: Executor | None = None,
    name_fn: NameFn | None = None,
    skip_existing: bool = False,
    **axes: Sequence[Any],
) -> Table:
    """`main_fn(config)` for every combination of the axes, each in a folder of its own under `sweep_dir`.

    `main_fn` may be a coroutine function. One run at a time is run in this process; several are run in processes of
    their own, which inherit the server that this one connects to (their output goes to output.log of their folder), or
    by the `executor` given. A run that fails is reported and stops no other.

    The same call again goes on: runs resume from their checkpoints, and with `skip_existing` those that were finished
    with the same settings are not started. Returns one row per run: a list of dicts, or a DataFrame with pandas.
    """
    check_axes(base_config, axes)
    if max_parallel < 1:
        raise ConfigurationError(f"max_parallel={max_parallel} must be at least 1")
    folder = Path(sweep_dir or _default_folder(base_config, axes)).expanduser()
    jobs = [
        _job(main_fn, base_config, folder, name, point)
        for name, point in named_points(grid(**axes), name_fn).items()
    ]
    _check_folders(jobs)
    waiting = [job for job in jobs if not (skip_existing and job.is_finished())]
    logger.info("%d runs under %s, %d of them finished before", len(jobs), folder, len(jobs) - len(waiting))
    if waiting:
        server = _connect(base_config)
        if executor is not None:
            _run_with(executor, _run_here, waiting)
        elif max_parallel > 1:
            _check_picklable(waiting[0])
            with _cancelling(ThreadPoolExecutor(max_parallel)) as threads:
                _run_with(threads, _run_in_child, waiting)
        else:
            for job in waiting:
                _report(job, _run_here(job))
        del server
    names = {job.record.name for job in jobs}
    return as_table([row for row in collect_rows(folder) if row["name"] in names])


@dataclass(frozen=True)
class Job:
    main_fn: MainFn
    config: Any
    folder: Path
    record: RunRecord

    def is_finished(self) -> bool:
        """Finished before, and with these settings: with others, such as more steps, it is to go on."""
        before = RunRecord.read(self.folder)
        if before is None or before.status != "done":
            return False
        if not before.is_same_call(self.record):
            logger.info("%s was finished with other settings; it goes on with these", before.name)
            return False
        return True


def _job(main_fn: MainFn, base_config: Any, folder: Path, name: str, point: Point) -> Job:
    settings: dict[str, Any] = point | {"log_path": str(folder / name)}
    if "behavior_if_log_dir_exists" in chz.chz_fields(base_config):
        settings["behavior_if_log_dir_exists"] = "resume"
    config = chz.replace(base_config, **settings)
    return Job(main_fn, config, folder / name, RunRecord.new(name, point, main_fn, config))


def _check_folders(jobs: Sequence[Job]) -> None:
    """A folder with the run of another point is somebody else's: name_fn has changed, or two sweeps share a folder."""
    for job in jobs:
        before = RunRecord.read(job.folder)
        if before is not None and before.point != job.record.point:
            raise ConfigurationError(
                f"{job.folder} holds the run of {before.point}, not of {job.record.point}; use another sweep_dir"
            )


def _default_folder(base_config: Any, axes: dict[str, Any]) -> str:
    """The same call is the same folder, so that it can go on."""
    named = getattr(base_config, "log_path", None)
    if named is not None:
        return named
    return example_path("sweep", type(base_config).__module__, *axes)


def _connect(base_config: Any) -> object:
    """An engine on this machine is started here, once: it would end with the run that started it.

    Configs that know no server have no base_url, and those that name one need no engine.
    """
    if getattr(base_config, "base_url", "none") is not None:
        return None
    from tinker_cookbook.service import connect

    return connect()


# --- one run ----------------------------------------------------------------------------------------------


def _run_here(job: Job) -> RunRecord:
    """In the process, and the thread, of the caller. Never raises for what the run does."""
    job.record.write(job.folder)
    (job.folder / ERROR).unlink(missing_ok=True)
    started = time.monotonic()
    error = _error_of(job)
    seconds = round(time.monotonic() - started, 3)
    done = replace(job.record, status="failed" if error else "done", seconds=seconds, error=error)
    done.write(job.folder)
    return done


def _error_of(job: Job) -> str | None:
    try:
        outcome = job.main_fn(job.config)
        if inspect.iscoroutine(outcome):
            asyncio.run(outcome)
    except (Exception, SystemExit) as error:  # the boundary: a run that fails is a row of the table
        (job.folder / ERROR).write_text(traceback.format_exc(), encoding="utf-8")
        return f"{type(error).__name__}: {error}"
    return None


def _run_in_child(job: Job) -> RunRecord:
    """In a process of its own. One that dies without a word, as of too little memory, is a run that failed."""
    job.record.write(job.folder)
    process = multiprocessing.get_context("spawn").Process(target=_child, args=(job,))
    process.start()
    process.join()
    record = RunRecord.read(job.folder)
    if record is not None and record.status != "running":
        return record
    said = f"its process ended with exit code {process.exitcode}; see {job.folder / OUTPUT}"
    failed = replace(job.record, status="failed", error=said)
    failed.write(job.folder)
    return failed


def _child(job: Job) -> None:
    output = os.open(job.folder / OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    _run_here(job)


# --- all of them ------------------------------------------------------------------------------------------


def _run_with(executor: Executor, execute: Callable[[Job], RunRecord], jobs: Sequence[Job]) -> None:
    futures: dict[Future[RunRecord], Job] = {executor.submit(execute, job): job for job in jobs}
    for future in as_completed(futures):
        job = futures[future]
        try:
            record = future.result()
        except BrokenExecutor as error:
            record = replace(job.record, status="failed", error=f"{type(error).__name__}: {error}")
            record.write(job.folder)
        _report(job, record)


@contextmanager
def _cancelling(threads: ThreadPoolExecutor) -> Iterator[ThreadPoolExecutor]:
    """After Ctrl-C, which the children hear as well, nothing new is started, and they are waited for."""
    try:
        yield threads
    finally:
        threads.shutdown(wait=True, cancel_futures=True)


def _report(job: Job, record: RunRecord) -> None:
    if record.status == "done":
        logger.info("%s: done in %.0f s", record.name, record.seconds)
    else:
        logger.error("%s: failed: %s (in %s)", record.name, record.error, job.folder)


def _check_picklable(job: Job) -> None:
    try:
        pickle.dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigurationError(
            "runs in processes of their own need a main_fn and a config that can be pickled, such as a function of a "
            f"module; use max_parallel=1 for others. It was said: {error}"
        ) from error
