"""The compute process, driven a piece at a time."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.tinker_engine.backends.support import (
    driven_worker,
    forward_backward,
    open_run,
    optim_step,
    sample,
)
from tinker_engine.backends.messages import (
    SAMPLING,
    Cancel,
    CloseRun,
    Done,
    Failed,
    Forget,
    Hello,
    Progress,
    Running,
    SaveAll,
    Saved,
    Stats,
    Stopped,
    Train,
)
from tinker_engine.sampling.scheduler import MOST_ROWS


@pytest.fixture
def worker(tmp_path):
    with driven_worker(tmp_path) as worker:
        yield worker


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(5, 1000, size=count).tolist()


def long_call(sequences: int) -> list[list[int]]:
    """At least as many pieces as sequences: two do not fit into the memory there is."""
    return [tokens(200, i) for i in range(sequences)]


def pieces(worker, op: str) -> int:
    """How often the worker turned to this operation."""
    return worker.order(Running).count(op)


# --- fairness --------------------------------------------------------------------------------------------


def test_sampling_goes_on_beside_a_long_training_call(worker):
    worker.send(open_run("r"), forward_backward("r:1", "r", long_call(12)), sample("s", "c", 20, stream=True))
    worker.until_heard(Done, "r:1")
    heard = worker.heard.index(worker.of(Done, "r:1")[0])
    before = [m for m in worker.heard[:heard] if isinstance(m, Progress | Done) and m.op == "s"]
    assert len(before) >= 20


def test_training_goes_on_beside_long_sampling(worker):
    worker.send(
        open_run("r"),
        *(sample(f"s{i}", "c", 120) for i in range(16)),
        forward_backward("r:1", "r", long_call(2)),
    )
    worker.until_heard(Done, "r:1")
    assert not worker.of(Done, "s0")
    worker.until_heard(Done, "s15")


def test_a_client_with_a_long_queue_does_not_delay_another_s_single_request(worker):
    queue = MOST_ROWS + 100
    worker.send(*(sample(f"many{i}", "greedy", 12) for i in range(queue)), sample("one", "modest", 1))
    worker.until_heard(Done, "one")
    assert len(worker.of(Done)) <= MOST_ROWS + 1
    worker.until(lambda: len(worker.of(Done)) == queue + 1)


def test_two_runs_take_turns(worker):
    worker.send(open_run("a", "x"), open_run("b", "y"))
    for run in ("a", "b"):
        worker.send(*(forward_backward(f"{run}:{i}", run, long_call(1), i) for i in range(1, 7)))
    worker.until(lambda: len(worker.of(Done)) == 12)
    order = [op[0] for op in worker.order(Done)]
    assert order[:6].count("a") in (2, 3, 4)
    assert worker.order(Done).index("a:1") < worker.order(Done).index("a:2")


def test_a_short_call_does_not_wait_for_the_end_of_another_run_s_long_one(worker):
    worker.send(open_run("a"), open_run("b"), forward_backward("a:1", "a", long_call(10)))
    worker.step()
    worker.send(forward_backward("b:1", "b", long_call(1)))
    worker.until_heard(Done, "b:1")
    assert not worker.of(Done, "a:1")
    worker.until_heard(Done, "a:1")


@pytest.mark.long
def test_what_takes_turns_gives_the_bits_of_what_runs_alone(worker, tmp_path_factory):
    def calls(run):
        return [
            forward_backward(f"{run}:1", run, long_call(4)),
            optim_step(f"{run}:2", run, 2),
            forward_backward(f"{run}:3", run, long_call(2), 3),
        ]

    worker.send(
        open_run("a"), open_run("b"), *calls("a"), *calls("b"), *(sample(f"s{i}", "c", 40) for i in range(4))
    )
    worker.until(lambda: len(worker.of(Done)) == 10)
    with driven_worker(tmp_path_factory.mktemp("alone")) as alone:
        alone.send(open_run("a"), *calls("a"))
        alone.until_heard(Done, "a:3")
        for number in ("1", "2", "3"):
            (expected,) = {m.result for m in alone.of(Done, f"a:{number}")}
            assert {m.result for run in "ab" for m in worker.of(Done, f"{run}:{number}")} == {expected}


# --- messages --------------------------------------------------------------------------------------------


def test_a_worker_says_hello_first_and_reports_what_it_did(worker, monkeypatch):
    monkeypatch.setattr("tinker_engine.backends.worker.STATS_SECONDS", 0.0)
    assert isinstance(worker.heard[0], Hello)
    worker.send(open_run("r"), forward_backward("r:1", "r", [tokens(50)]), sample("s", "c", 5))
    worker.until(lambda: len(worker.of(Done)) == 2)
    worker.send(CloseRun("none"))  # so that it does not wait for ever
    worker.step()
    values = worker.of(Stats)[-1].values
    assert values["trained_tokens"] == 49
    assert values["training_operations"] == 1
    assert values["sampled_tokens"] == 5
    assert (values["runs"], values["runs_in_memory"], values["rows"], values["samples_waiting"]) == (
        1,
        1,
        0,
        0,
    )


def test_cancelled_requests_are_not_answered_wherever_they_are(worker):
    running, waiting = [f"r{i}" for i in range(MOST_ROWS)], ["w1", "w2"]
    worker.send(*(sample(op, "c", 50) for op in [*running, *waiting]), sample("kept", "d", 3))
    worker.until(lambda: worker.of(Done, "kept"))
    worker.send(*(Cancel(op) for op in [*running[1:], "w1", "never"]))
    worker.until(lambda: worker.of(Done, "r0") and worker.of(Done, "w2"))
    assert sorted(worker.order(Done)) == ["kept", "r0", "w2"]
    assert not worker.of(Failed)


def test_what_is_wrong_with_an_operation_is_its_answer_alone(worker):
    bad = Train("r:1", "r", "forward_backward", 1, b"\xff\xff")
    worker.send(open_run("r"), bad, forward_backward("r:2", "r", [tokens(20)], 2))
    worker.send(
        optim_step("r:3", "r", 3, rate=-1.0),
        optim_step("r:4", "r", 4),
        replace(sample("s1", "c", 9), body=b"{}"),
        sample("s2", "c", 2),
    )
    worker.until(lambda: len(worker.of(Done)) + len(worker.of(Failed)) == 6)
    assert sorted(worker.order(Failed)) == ["r:1", "r:3", "s1"]
    assert {failed.category for failed in worker.of(Failed)} == {"user"}


def test_a_request_says_what_is_being_computed_also_after_a_pause(worker):
    """If the process dies, this is what it died of."""
    worker.send(open_run("r"), forward_backward("r:1", "r", long_call(3)), sample("s", "c", 30))
    worker.until(lambda: len(worker.of(Done)) == 2)
    order = worker.order(Running)
    assert order[0] == "r"  # while it is opened
    assert {"r", "r:1", SAMPLING} == set(order)
    assert pieces(worker, "r:1") >= 2
    assert all(one != two for one, two in pairwise(order))


def test_a_snapshot_is_as_it_was_however_training_goes_on(worker, tmp_path):
    folder = tmp_path / "checkpoints" / "snapshot"
    worker.send(open_run("r"), forward_backward("r:1", "r", [tokens(50)]), optim_step("r:2", "r", 2))
    worker.send(Train("r:3", "r", "save_sampler", 3, target=folder))
    worker.until_heard(Done, "r:3")
    for op in ("cold", "warm"):  # the second finds the prompt in the cache, which is another last bit
        worker.send(sample(op, "c", 20, snapshot=folder))
        worker.until_heard(Done, op)
    for at in range(4, 10, 2):
        worker.send(
            forward_backward(f"r:{at}", "r", [tokens(50)], at), optim_step(f"r:{at + 1}", "r", at + 1)
        )
    worker.send(sample("during", "c", 20, snapshot=folder))
    worker.until_heard(Done, "r:9")
    worker.until_heard(Done, "during")
    worker.send(Forget([folder.name]), sample("from disk", "c", 20, snapshot=folder))
    worker.until_heard(Done, "from disk")
    worker.send(sample("base", "c", 20))
    worker.until_heard(Done, "base")
    answers = {op: worker.of(Done, op)[0].result for op in ("cold", "warm", "during", "from disk", "base")}
    assert answers["warm"] == answers["during"]
    assert answers["cold"] == answers["from disk"] != answers["base"]


def test_replayed_operations_are_silent_and_have_their_effect(worker, tmp_path):
    data, later = [tokens(40)], [tokens(40, 1)]
    worker.send(
        open_run("a"),
        forward_backward("a:1", "a", data),
        optim_step("a:2", "a", 2),
        forward_backward("a:3", "a", later, 3),
    )
    worker.until_heard(Done, "a:3")
    worker.send(
        open_run("b"),
        forward_backward("b:1", "b", data, replay=True),
        optim_step("b:2", "b", 2, replay=True),
        forward_backward("b:3", "b", later, 3),
    )
    done = worker.until_heard(Done, "b:3")
    assert done.result == worker.of(Done, "a:3")[0].result
    assert not worker.of(Done, "b:1")


def test_a_step_that_is_refused_keeps_the_gradient(worker):
    data, later = [tokens(40)], [tokens(40, 1)]
    worker.send(open_run("a"), forward_backward("a:1", "a", data), optim_step("a:2", "a", 2, rate=-1.0))
    worker.send(open_run("b"), forward_backward("b:1", "b", data))
    for run in "ab":
        worker.send(optim_step(f"{run}:3", run, 3), forward_backward(f"{run}:4", run, later, 4))
        worker.until_heard(Done, f"{run}:4")
    assert worker.order(Failed) == ["a:2"]
    for number in (3, 4):
        assert worker.of(Done, f"a:{number}")[0].result == worker.of(Done, f"b:{number}")[0].result


def test_a_step_that_fails_drops_the_gradient_as_its_replay_does(worker):
    """What comes after must have the same bits, whether it failed now or in the past."""
    data, later = [tokens(40)], [tokens(40, 1)]
    worker.send(open_run("a"), forward_backward("a:1", "a", data))
    worker.until_heard(Done, "a:1")
    state = worker.worker._runs.get("a").state
    assert state is not None
    state.grad[0] = float("nan")
    worker.send(optim_step("a:2", "a", 2))
    worker.send(open_run("b"), forward_backward("b:1", "b", data, replay=True))
    worker.send(Train("b:2", "b", "drop_gradient", 2, replay=True))
    for run in "ab":
        worker.send(forward_backward(f"{run}:3", run, later, 3), optim_step(f"{run}:4", run, 4))
        worker.send(forward_backward(f"{run}:5", run, later, 5))
        worker.until_heard(Done, f"{run}:5")
    (failed,) = worker.of(Failed)
    assert (failed.op, failed.category) == ("a:2", "server")
    for number in (3, 4, 5):
        assert worker.of(Done, f"a:{number}")[0].result == worker.of(Done, f"b:{number}")[0].result, number


def test_at_the_end_runs_are_saved_unless_a_gradient_accumulates(worker, tmp_path):
    data = [tokens(40)]
    for run in ("clean", "dirty"):
        worker.send(open_run(run), forward_backward(f"{run}:1", run, data), optim_step(f"{run}:2", run, 2))
    worker.send(
        open_run("untouched"),
        forward_backward("dirty:3", "dirty", data, 3),
        forward_backward("clean:3", "clean", data, 3),
    )
    worker.send(optim_step("clean:4", "clean", 4))
    worker.until_heard(Done, "clean:4")
    worker.until_heard(Done, "dirty:3")
    worker.send(SaveAll())
    worker.step()
    assert worker.worker.stopped
    assert isinstance(worker.heard[-1], Stopped)
    (saved,) = worker.of(Saved)
    assert (saved.run, saved.position) == ("clean", 4)
    with driven_worker(tmp_path) as successor:
        successor.send(open_run("clean", state=saved.folder), forward_backward("clean:5", "clean", data, 5))
        successor.send(open_run("new"))
        successor.send(
            *(
                m
                for i in (1, 3)
                for m in (
                    forward_backward(f"new:{i}", "new", data, i),
                    optim_step(f"new:{i + 1}", "new", i + 1),
                )
            )
        )
        successor.send(forward_backward("new:5", "new", data, 5))
        successor.until_heard(Done, "new:5")
        assert successor.until_heard(Done, "clean:5").result == successor.of(Done, "new:5")[0].result


def test_a_damaged_save_is_reported_as_such_and_other_runs_open(worker, tmp_path):
    (tmp_path / "saved").mkdir()
    worker.send(open_run("r", state=tmp_path / "saved"), forward_backward("r:1", "r", [tokens(20)]))
    worker.send(open_run("fine"), forward_backward("fine:1", "fine", [tokens(20)]))
    worker.until_heard(Done, "fine:1")
    opening, op = worker.of(Failed)
    assert (opening.op, opening.replay, op.op) == ("r:0", True, "r:1")
    assert "no manifest" in opening.message


def test_runs_beyond_the_limit_are_moved_out_with_their_gradient_and_back(tmp_path):
    data = [tokens(40)]
    with driven_worker(tmp_path, run_bytes=1) as worker:
        worker.send(*(open_run(run) for run in "abc"))
        for position in (1, 2, 3):
            for run in "abc":
                made = (
                    optim_step if position == 3 else lambda op, run, at: forward_backward(op, run, data, at)
                )
                worker.send(made(f"{run}:{position}", run, position))
                worker.until_heard(Done, f"{run}:{position}")
        for position in (1, 2, 3):
            assert len({worker.of(Done, f"{run}:{position}")[0].result for run in "abc"}) == 1
        assert sum(1 for _ in (tmp_path / "spill").iterdir()) == 2
        worker.send(CloseRun("a"), CloseRun("b"), CloseRun("c"))
        worker.step()
        assert list((tmp_path / "spill").iterdir()) == []
