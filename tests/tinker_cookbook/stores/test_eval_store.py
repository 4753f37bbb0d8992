"""Evaluation runs, written as they go and read back."""

import asyncio
import re

import pytest

from tinker_cookbook.eval.benchmarks._types import BenchmarkResult, StoredTrajectory, StoredTurn
from tinker_cookbook.stores import LocalStorage
from tinker_cookbook.stores.eval_store import EvalStore, RunMetadata

RESULT = BenchmarkResult(
    "gsm8k", 0.5, num_examples=4, num_correct=2, num_errors=1, pass_at_k={1: 0.5, 5: 0.75}
)


@pytest.fixture
def store(storage) -> EvalStore:
    return EvalStore(storage, "eval")


def trajectory(idx: int, reward: float, error: str | None = None) -> StoredTrajectory:
    return StoredTrajectory(
        idx, "gsm8k", f"id_{idx}", [StoredTurn("user", "2+2?", 3)], reward, error=error, time_seconds=1.5
    )


def test_a_run_from_start_to_end(store, storage):
    run_id = store.create_run("model", ["gsm8k"], "tinker://x", "000010", config={"max_tokens": 5})
    assert re.fullmatch(r"000010_\d{8}_\d{6}_[0-9a-f]{6}", run_id)
    store.write_trajectory(run_id, "gsm8k", trajectory(0, 1.0))
    store.write_result(run_id, RESULT)
    store.write_summary(run_id, {"gsm8k": RESULT})
    metadata = store.finalize_run(run_id)
    assert metadata.scores == {"gsm8k": 0.5}
    assert store.read_run(run_id) == metadata
    assert store.read_result(run_id, "gsm8k") == RESULT
    assert store.read_trajectories(run_id, "gsm8k") == [trajectory(0, 1.0)]
    assert store.list_benchmarks(run_id) == ["gsm8k"]
    assert (store.read_summary(run_id) or {})["gsm8k"]["pass_at_k"] == {"1": 0.5, "5": 0.75}
    assert EvalStore(storage, "eval").list_runs() == [metadata]
    assert storage.list_dir("eval") == ["runs", "runs.jsonl"]


def test_filters_and_single_ones(store):
    run_id = store.create_run("model", ["gsm8k"])
    assert run_id.startswith("base_")
    for each in (trajectory(0, 1.0), trajectory(1, 0.0), trajectory(2, 0.0, "timeout (5s)")):
        store.write_trajectory(run_id, "gsm8k", each)

    def ids(**filters):
        return [each.idx for each in store.read_trajectories(run_id, "gsm8k", **filters)]

    assert ids() == [0, 1, 2]
    assert ids(correct_only=True) == [0]
    assert ids(incorrect_only=True) == [1, 2]
    assert ids(errors_only=True) == [2]
    store.write_trajectory(run_id, "gsm8k", trajectory(2, 1.0))
    again = store.read_single_trajectory(run_id, "gsm8k", 2)
    assert again is not None
    assert again.error is None
    assert store.read_single_trajectory(run_id, "gsm8k", 9) is None


def test_listing_and_deleting(store):
    ids = [store.create_run("model", [], run_id=name) for name in ("a", "c", "b")]
    assert [each.run_id for each in store.list_runs()] == ["c", "b", "a"]
    store.delete_run("c")
    store.delete_run("c")
    assert [each.run_id for each in asyncio.run(store.alist_runs())] == ["b", "a"]
    with pytest.raises(FileNotFoundError, match="list_runs"):
        store.read_run(ids[1])
    assert store.read_summary("a") is None
    assert asyncio.run(store.aread_result("a", "none")) is None
    assert asyncio.run(store.aread_trajectories("a", "none", errors_only=True)) == []


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a"])
def test_a_run_is_one_folder(store, name):
    store.create_run("model", [], run_id="kept")
    with pytest.raises(ValueError, match="one folder"):
        store.delete_run(name)
    assert [each.run_id for each in store.list_runs()] == ["kept"]


def test_folders_of_runs_exist_only_on_this_machine(tmp_path, memory_uri):
    local = EvalStore(str(tmp_path))
    run_id = local.create_run("model", [])
    assert local.run_dir(run_id) == str(tmp_path / "runs" / run_id)
    with pytest.raises(RuntimeError, match="no local folder"):
        EvalStore(memory_uri).run_dir("x")


def test_records_of_other_versions():
    older = {"idx": 1, "benchmark": "b", "turns": [{"role": "user", "content": "x", "novel": 1}], "novel": 2}
    assert StoredTrajectory.from_dict(older).turns == [StoredTurn("user", "x")]
    metadata = RunMetadata("r", "m", None, None, [], "t")
    assert RunMetadata.from_dict({**metadata.to_dict(), "novel": 1}) == metadata


def test_a_reward_that_is_no_number_survives_the_file(tmp_path):
    store = EvalStore(LocalStorage(tmp_path))
    run_id = store.create_run("m", ["gsm8k"])
    store.write_trajectory(run_id, "gsm8k", trajectory(0, float("nan")))
    (back,) = store.read_trajectories(run_id, "gsm8k")
    assert back.reward != back.reward
    assert store.read_trajectories(run_id, "gsm8k", correct_only=True) == []


def test_scores_over_all_and_over_the_completed():
    result = BenchmarkResult("b", 0.5, num_examples=8, num_correct=4, num_errors=1, num_truncated=2)
    assert (result.num_completed, result.score_completed) == (5, 0.8)
    assert BenchmarkResult("b", 0.0, 1, 0, num_errors=1).score_completed == 0.0
