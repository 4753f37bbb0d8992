"""Calls in processes that are killed: what they return, and that they do not go on."""

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tinker_cookbook.recipes.bounded_calls import (
    BoundedCalls,
    CallFailedError,
    CallTimeoutError,
    CallUnavailableError,
)

ROOT = Path(__file__).parents[3]
HANGS = ("time:sleep", 3600)


@pytest.fixture
def calls():
    made = BoundedCalls(size=1)
    yield made
    made.close()


def test_one_process_serves_many_calls_and_what_is_printed_does_not_get_between(calls):
    first = calls.call("os:getpid", timeout=10)
    assert first != os.getpid()
    assert calls.call("builtins:print", "noise", timeout=10) is None
    assert calls.call("os:getpid", timeout=10) == first
    with pytest.raises(CallFailedError, match="ZeroDivisionError"):
        calls.call("operator:truediv", 1, 0, timeout=10)
    assert calls.call("os:getpid", timeout=10) == first


def test_a_call_that_hangs_is_killed_and_the_next_one_served(calls):
    first = calls.call("os:getpid", timeout=10)
    with pytest.raises(CallTimeoutError, match=r"longer than 0\.05 s"):
        calls.call(*HANGS, timeout=0.05)
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)  # reaped, and no zombie
    assert calls.call("os:getpid", timeout=10) != first


def test_a_computation_that_never_lets_python_run_is_killed_too(calls):
    with pytest.raises(CallTimeoutError):
        calls.call("operator:pow", 9, 9**9, timeout=0.05)


def test_a_process_that_dies_is_replaced(calls):
    with pytest.raises(CallFailedError, match="died"):
        calls.call("os:_exit", 3, timeout=10)
    assert calls.call("operator:add", 1, 2, timeout=10) == 3


def test_what_cannot_be_imported_is_named(calls):
    with pytest.raises(CallUnavailableError) as caught:
        calls.call("no_such_package.grader:grade", timeout=10)
    assert caught.value.missing == "no_such_package"
    assert calls.call("operator:add", 1, 2, timeout=10) == 3


def test_the_event_loop_goes_on_meanwhile(calls):
    calls.call("operator:add", 1, 2, timeout=10)

    async def main() -> int:
        ticks = 0
        hanging = asyncio.ensure_future(calls.call_async(*HANGS, timeout=0.3))
        while not hanging.done():
            await asyncio.sleep(0.01)
            ticks += 1
        assert isinstance(hanging.exception(), CallTimeoutError)
        return ticks

    assert asyncio.run(main()) > 3


def test_calls_from_many_threads_wait_their_turn(calls):
    results: list[int] = []
    threads = [
        threading.Thread(target=lambda i=i: results.append(calls.call("operator:mul", i, i, timeout=10)))
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [i * i for i in range(8)]


def test_a_program_ends_cleanly_and_takes_its_processes_along():
    script = (
        "from tinker_cookbook.recipes.bounded_calls import shared_calls\n"
        "print(shared_calls().call('os:getpid', timeout=10))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)
