"""Rollouts in other processes or threads: the work goes out, and with the result its spans and its log come home.

A rollout that was sent off ends by itself: cancelling who waits for it does not reach it.
"""

import asyncio
import contextlib
import logging
import pickle
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import BrokenExecutor, Executor
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Generic, TypeVar

from tinker_cookbook.exceptions import ConfigurationError, TrainingError
from tinker_cookbook.utils.logtree import init_trace
from tinker_cookbook.utils.logtree.transfer import Branch, graft, take_branch
from tinker_cookbook.utils.logtree.tree import current_position
from tinker_cookbook.utils.trace import IterationWindow, SpanRecord, collect_into, current_window

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

END_SECONDS = 20.0
"""How long rollouts that still run when the executor is to end may go on; its processes are ended then."""

_MAX_DEPTH = (
    5  # attributes of attributes that are looked at to find what cannot be pickled; there may be cycles
)

_executor: ContextVar[Executor | None] = ContextVar("rollout_executor", default=None)


def set_rollout_executor(executor: Executor | None) -> None:
    """Where rollouts run from now on; None for this process. Holds for this task and those it starts."""
    if _start_method(executor) == "fork":
        raise ConfigurationError(
            "rollouts cannot run in forked processes: the locks of the SDK's threads would be copied as they are. Use "
            'ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn"))'
        )
    _executor.set(executor)


def get_rollout_executor() -> Executor | None:
    """The pool in which groups are rolled out; None: this process."""
    return _executor.get()


def _start_method(executor: Executor | None) -> str | None:
    """None if it has no processes of its own, as far as one can tell."""
    context = getattr(executor, "_mp_context", None)
    return None if context is None else context.get_start_method()


async def end_executor(executor: Executor) -> None:
    """Shut it down. What waits there is dropped, what runs may finish, and what hangs is not waited for for ever."""
    processes = list((getattr(executor, "_processes", None) or {}).values())  # it forgets them on the way
    # A daemon, and none of asyncio's threads, which would be waited for at the end of the event loop.
    ending = threading.Thread(target=executor.shutdown, kwargs={"cancel_futures": True}, daemon=True)
    ending.start()
    if await _ends(ending):
        return
    if not processes:
        logger.warning(
            "rollouts still run in the executor %g s after the end of the run. Threads cannot be ended from outside: "
            "this process may stay until they are done",
            END_SECONDS,
        )
        return
    logger.warning(
        "rollouts still run in the executor %g s after the end of the run: ending its %d processes",
        END_SECONDS,
        len(processes),
    )
    for process in processes:
        process.terminate()
    if not await _ends(ending):
        for process in processes:
            process.kill()
        await _ends(ending)


async def _ends(thread: threading.Thread) -> bool:
    await asyncio.to_thread(thread.join, END_SECONDS)
    return not thread.is_alive()


# --- here -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Task(Generic[T, R]):
    function: Callable[[T], Awaitable[R]]
    argument: T
    with_log: bool


@dataclass(frozen=True)
class _Outcome(Generic[R]):
    """What the worker sends home; also the error, so that spans and log come with it."""

    result: R | None
    error: Exception | None
    spans: list[SpanRecord]
    log: Branch | None


async def run_elsewhere(executor: Executor, function: Callable[[T], Awaitable[R]], argument: T) -> R:
    """`await function(argument)` in a worker of `executor`, in an event loop of its own."""
    task = _Task(function, argument, with_log=current_position() is not None)
    loop = asyncio.get_running_loop()
    try:
        if _start_method(executor) is None:
            outcome = await loop.run_in_executor(executor, _work, task)
        else:
            packed = _packed(task)  # here, where one can still tell what it is that does not go through
            outcome = pickle.loads(await loop.run_in_executor(executor, _work_on_packed, packed))
    except BrokenExecutor as error:
        raise TrainingError(
            "a process of the rollout executor died, perhaps for lack of memory, and its rollouts with it; with fewer "
            "workers, or without an executor, the run can be resumed"
        ) from error
    return _taken_home(outcome)


def _taken_home(outcome: _Outcome[R]) -> R:
    window = current_window()
    if window is not None:
        window.merge_spans(outcome.spans)
    if outcome.log is not None:
        graft(outcome.log)
    if outcome.error is not None:
        raise outcome.error
    return outcome.result  # pyright: ignore[reportReturnType]  there is one if there is no error


# --- in the worker ----------------------------------------------------------------------------------------


def _work(task: _Task[T, R]) -> _Outcome[R]:
    return asyncio.run(_observed(task))


def _work_on_packed(packed: bytes) -> bytes:
    """Packs the outcome itself: an exception that cannot be unpacked would break the whole pool."""
    try:
        task = pickle.loads(packed)
    except Exception as error:
        raise ConfigurationError(
            f"a rollout cannot be read in its worker process ({error!r}): what it uses must be importable there, so "
            'define it in a module, and start the run under `if __name__ == "__main__":`'
        ) from error
    return pickle.dumps(_work(task))


async def _observed(task: _Task[T, R]) -> _Outcome[R]:
    result, error, log = None, None, None
    with collect_into(IterationWindow()) as window, contextlib.ExitStack() as stack:
        report = stack.enter_context(init_trace("worker")) if task.with_log else None
        try:
            result = await task.function(task.argument)
        except Exception as raised:
            error = _portable(raised)
        if report is not None:
            log = take_branch(report)
    return _Outcome(result, error, window.spans, log)


def _portable(error: Exception) -> Exception:
    """With its traceback as a note, which is all that survives pickling; or as text, if it cannot be pickled itself."""
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return TrainingError(f"a rollout failed in its worker:\n{text}")
    error.add_note(f"in the worker:\n{text}")
    return error


# --- pickling ---------------------------------------------------------------------------------------------


def _packed(task: _Task[Any, Any]) -> bytes:
    try:
        return pickle.dumps(task)
    except Exception as error:
        where, culprit = _unpicklable_part(type(task.argument).__name__, task.argument, _MAX_DEPTH)
        raise ConfigurationError(
            f"{where} ({type(culprit).__name__}) cannot be sent to another process: {error}. Functions and classes "
            "must be defined in a module and not within a function; what holds a lock, a file or a connection is best "
            "made in make_envs(). Or run the rollouts in this process: set_rollout_executor(None)"
        ) from error


def _unpicklable_part(name: str, value: Any, depth: int) -> tuple[str, Any]:
    """The innermost attribute that pickle refuses."""
    for key, part in _parts(value).items() if depth else ():
        if not _can_be_pickled(part):
            return _unpicklable_part(f"{type(value).__name__}.{key}", part, depth - 1)
    return name, value


def _parts(value: Any) -> Mapping[str, Any]:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return getattr(value, "__dict__", {}) if not isinstance(value, type) and not callable(value) else {}


def _can_be_pickled(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True
