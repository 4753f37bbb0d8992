"""The files of a run, written and read back."""

import asyncio
import pickle

import numpy as np

from tinker_cookbook.stores import FsspecStorage, TrainingRunStore, storage_from_uri
from tinker_cookbook.stores.training_store import IterationInfo


def test_nothing_is_there_yet(storage):
    store = TrainingRunStore(storage, "run")
    assert store.read_config() is None
    assert store.read_logtree(0) is None
    assert store.read_single_rollout(0, 0, 0) is None
    for empty in (store.read_metrics, store.read_new_metrics, store.read_checkpoints, store.read_timing):
        assert empty() == []
    assert store.read_rollouts(0) == store.list_logtrees(0) == store.list_iterations() == []
    assert store.metric_keys() == set()


def test_every_file_lands_where_others_look_for_it(storage):
    store = TrainingRunStore(storage, "run")
    store.write_config({"a": 1})
    store.write_code_diff("diff")
    store.write_metrics({"loss": np.float32(0.5)}, step=3)
    store.write_metrics({"note": 1})
    store.write_timing_spans(3, [{"name": "x"}])
    store.write_timing_spans(4, [])
    store.write_checkpoint({"name": "000003", "state_path": "tinker://x"})
    store.write_rollouts(2, [{"group_idx": 0, "traj_idx": 1}])
    store.write_logtree(2, {"title": "t"}, "eval_gsm8k")
    store.flush()
    assert storage.list_dir("run") == [
        "checkpoints.jsonl", "code.diff", "config.json", "iteration_000002", "metrics.jsonl", "timing_spans.jsonl",
    ]  # fmt: skip
    assert storage.list_dir("run/iteration_000002") == [
        "eval_gsm8k_logtree.json",
        "train_rollout_summaries.jsonl",
    ]
    assert storage.read("run/metrics.jsonl") == b'{"step": 3, "loss": 0.5}\n{"note": 1}\n'
    assert store.read_config() == {"a": 1}
    assert store.metric_keys() == {"loss", "note"}
    assert store.read_timing() == [{"step": 3, "spans": [{"name": "x"}]}]
    assert store.read_logtree(2, "eval_gsm8k") == {"title": "t"}
    assert store.list_logtrees(2) == ["eval_gsm8k"]
    assert store.list_iterations() == [IterationInfo(2, has_train_rollouts=True, eval_labels=["gsm8k"])]
    (record,) = store.read_checkpoint_records()
    assert (record.name, record.state_path) == ("000003", "tinker://x")
    assert store.url("config.json") == storage.url("run/config.json")


def test_new_metrics_do_not_depend_on_who_read_all(storage):
    store = TrainingRunStore(storage)
    store.write_metrics({}, step=0)
    assert store.read_metrics() == store.read_new_metrics() == [{"step": 0}]
    store.write_metrics({}, step=1)
    assert len(store.read_metrics()) == 2
    assert store.read_new_metrics() == [{"step": 1}]


def test_rollouts_are_replaced_and_found_singly(storage):
    store = TrainingRunStore(storage)
    store.write_rollouts(0, [{"group_idx": 0, "traj_idx": n, "r": 1} for n in range(3)])
    assert store.read_single_rollout(0, 0, 2) == {"group_idx": 0, "traj_idx": 2, "r": 1}
    store.read_rollouts(0).clear()
    assert len(store.read_rollouts(0)) == 3
    store.write_rollouts(0, [{"group_idx": 0, "traj_idx": 0, "r": 2}])
    assert store.read_rollouts(0) == [{"group_idx": 0, "traj_idx": 0, "r": 2}]
    TrainingRunStore(storage).write_rollouts(0, [])
    assert store.read_rollouts(0) == [], "written by somebody else"


def test_a_checkpoint_and_all_before_it_survive_a_kill(memory_uri):
    store = TrainingRunStore.from_uri(memory_uri)
    store.write_metrics({"loss": 1.0}, step=0)
    store.write_checkpoint({"name": "000001"})
    after_the_kill = TrainingRunStore(storage_from_uri(memory_uri))
    assert after_the_kill.read_checkpoints() == [{"name": "000001"}]
    assert after_the_kill.read_metrics() == [{"step": 0, "loss": 1.0}]
    assert isinstance(store._storage, FsspecStorage)


def test_awaitable_twins_and_copies(storage):
    store = pickle.loads(pickle.dumps(TrainingRunStore(storage)))

    async def use():
        await store.awrite_metrics({"a": 1}, step=0)
        await store.awrite_checkpoint({"name": "x"})
        return (
            await store.aread_metrics(),
            await store.aread_new_metrics(),
            await store.aread_checkpoints(),
            await store.aread_config(),
            await store.aread_rollouts(0, base_name="train"),
            await store.aread_timing(),
            await store.aread_logtree(0),
        )

    row = {"step": 0, "a": 1}
    assert asyncio.run(use()) == ([row], [row], [{"name": "x"}], None, [], [], None)
