"""Rollouts in threads and in other processes: results, errors, spans and logs come home; nothing hangs."""

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
import tinker

from tests.server import running_server
from tests.tinker_cookbook.rl.fakes import Group, Raises, Turns
from tests.tinker_cookbook.test_completers import MODEL, Listener
from tinker_cookbook.exceptions import ConfigurationError, TrainingError
from tinker_cookbook.rl.rollout_executor import get_rollout_executor, run_elsewhere, set_rollout_executor
from tinker_cookbook.rl.rollout_strategy import FailFast, RetryOnFailure, RolloutStrategy
from tinker_cookbook.rl.rollouts import FailedGroup, RolloutRequest, run_group_rollout
from tinker_cookbook.rl.types import Action, ActionExtra, Env, EnvGroupBuilder, StepResult, TrajectoryGroup
from tinker_cookbook.utils import logtree
from tinker_cookbook.utils.logtree_formatters import ConversationFormatter
from tinker_cookbook.utils.trace import trace_iteration


def spawned() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn"))


@pytest.fixture(scope="module")
def processes():
    with spawned() as pool:
        yield pool


@pytest.fixture(params=["threads", "processes"])
def pool(request):
    if request.param == "processes":
        yield request.getfixturevalue("processes")
        return
    with ThreadPoolExecutor(1) as threads:
        yield threads


@dataclass
class Talks(Turns):
    """Says where it runs."""

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        with logtree.scope_header(f"from {os.getpid()}"):
            logtree.log_text(f"in {threading.current_thread().name}")
            logtree.log_formatter(ConversationFormatter([{"role": "user", "content": "hello"}]))
        step = await super().step(action, extra=extra)
        step.logs["pid"] = os.getpid()
        step.logs["thread"] = threading.current_thread().name
        return step


@dataclass
class Wrapped(EnvGroupBuilder):
    """Of which only `held` may resist pickling."""

    held: Any = None
    group: Group = field(default_factory=lambda: Group([Talks()]))

    async def make_envs(self) -> Sequence[Env]:
        return await self.group.make_envs()


def run(
    executor: Executor | None,
    builder: EnvGroupBuilder,
    client: Any = None,
    strategy: RolloutStrategy | None = None,
) -> TrajectoryGroup | FailedGroup:
    async def main() -> TrajectoryGroup | FailedGroup:
        set_rollout_executor(executor)
        sampler: Any = client or Listener(logprobs=[-1.0])
        request = RolloutRequest(sampler, builder, 5, 1.0, seed=1, strategy=strategy or FailFast())
        return await asyncio.wait_for(run_group_rollout(request), timeout=120)

    return asyncio.run(main())


def logs_of(group: TrajectoryGroup | FailedGroup) -> dict[str, Any]:
    assert isinstance(group, TrajectoryGroup)
    return group.trajectories_G[0].transitions[-1].logs


# --- which executors --------------------------------------------------------------------------------------


def test_forked_processes_are_refused_and_others_are_taken(processes):
    forked = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
    with forked, pytest.raises(ValueError, match="spawn"):
        set_rollout_executor(forked)

    class Custom(Executor):
        pass

    async def main() -> None:
        with ThreadPoolExecutor(1) as threads:
            for executor in (processes, threads, Custom(), None):
                set_rollout_executor(executor)
                assert get_rollout_executor() is executor

    asyncio.run(main())
    assert get_rollout_executor() is None, "it holds for the task that set it"


# --- what comes home --------------------------------------------------------------------------------------


def test_the_rollout_runs_there(pool):
    here = logs_of(run(None, Group([Talks()])))
    there = logs_of(run(pool, Group([Talks()])))
    assert here == {"pid": os.getpid(), "thread": threading.current_thread().name}
    assert there != here


def test_spans_and_log_come_home(pool):
    with trace_iteration(0) as window, logtree.init_trace("report") as report, logtree.scope_header("outer"):
        there = logs_of(run(pool, Group([Talks(turns=2)])))
    names = [span.name for span in window.spans]
    assert names.count("policy_sample") == 2
    assert names.count("do_group_rollout") == 1
    assert window.total_time is not None
    assert all(0 <= span.duration <= window.total_time for span in window.spans)
    page = report.get_html()
    assert page.count(f"from {there['pid']}</h3>") >= 2, "a level below the section around it"
    assert f"in {there['thread']}" in page
    assert ConversationFormatter([]).get_css() in page
    ids = [part.split('"')[0] for part in page.split('<section class="lt-section" id="')[1:]]
    assert len(ids) == len(set(ids)) == 3


def test_nothing_is_logged_where_nobody_reads(pool):
    run(pool, Group([Talks()]))


def test_an_error_comes_home_with_its_traceback(pool):
    with logtree.init_trace("report"), pytest.raises(RuntimeError, match="the env is broken") as caught:
        run(pool, Group([Raises()]))
    (note,) = caught.value.__notes__
    assert "in step" in note, "where in the environment it was raised"


class NeedsTwo(Exception):
    """Cannot be unpickled."""

    def __init__(self, first: str, second: str):
        super().__init__(first + second)


async def raise_needs_two(argument: str) -> None:
    raise NeedsTwo(argument, "!")


def test_an_error_that_cannot_be_pickled_is_told_in_words_and_does_not_break_the_pool(processes):
    with pytest.raises(TrainingError, match="NeedsTwo: oh!"):
        asyncio.run(run_elsewhere(processes, raise_needs_two, "oh"))
    run(processes, Group([Talks()]))


def test_a_group_that_fails_there_is_counted_here(pool):
    failed = run(pool, Group([Raises()], replacement=Raises), strategy=RetryOnFailure(max_retries=1))
    assert isinstance(failed, FailedGroup)
    assert [error.error_type for error in failed.errors] == ["RuntimeError"] * 2


# --- what cannot go there ---------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda: lambda: None, threading.Lock])
@pytest.mark.parametrize("strategy", [FailFast(), RetryOnFailure()])
def test_a_builder_that_cannot_be_pickled_is_named_whatever_is_tolerated(
    processes, make: Callable[[], Any], strategy
):
    with pytest.raises(ConfigurationError, match=r"Wrapped\.held \((function|lock)\) cannot be sent"):
        run(processes, Wrapped(make()), strategy=strategy)


def test_a_class_within_a_function_and_attributes_in_a_circle_are_named(processes):
    class Local(Group):
        pass

    with pytest.raises(
        ConfigurationError, match=r"RolloutRequest.env_group_builder \(Local\) cannot be sent"
    ):
        run(processes, Local([Turns()]))
    circle = Wrapped()
    circle.held = Wrapped(circle)
    circle.held.lock = threading.Lock()
    with pytest.raises(ConfigurationError, match=r"Wrapped\.\w+ .*cannot be sent"):
        run(processes, circle)


def test_threads_need_no_pickle():
    with ThreadPoolExecutor(1) as threads:
        run(threads, Wrapped(threading.Lock()))


class Dies(Turns):
    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


@pytest.mark.long
def test_a_worker_that_dies_is_an_error_and_no_wait():
    with spawned() as own, pytest.raises(TrainingError, match="a process of the rollout executor died"):
        run(own, Group([Dies()]), strategy=RetryOnFailure())


# --- the real engine --------------------------------------------------------------------------------------


@pytest.mark.long
def test_rollouts_on_the_engine_from_another_process(processes, tmp_path):
    with running_server(tmp_path) as server:
        service = tinker.ServiceClient(base_url=server.url, api_key=server.key)
        client = service.create_sampling_client(base_model=MODEL)
        builder = Group([Talks(turns=2), Talks()])
        there = run(processes, builder, client)
    assert isinstance(there, TrajectoryGroup)
    assert there.get_total_rewards() == [1.0, 1.0]
    assert logs_of(there)["pid"] != os.getpid()
    for trajectory in there.trajectories_G:
        for turn in trajectory.transitions:
            assert 1 <= len(turn.ac.tokens) <= 5
            assert len(turn.ac.logprobs) == len(turn.ac.tokens)
