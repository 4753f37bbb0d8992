"""Runs are found, named and judged by their files."""

import os
import time

import pytest

from tinker_cookbook import stores
from tinker_cookbook.stores import LocalStorage, RunRegistry, TrainingRunStore
from tinker_cookbook.stores.eval_store import EvalStore


def run(folder, *, config=None, checkpoints=(), age: float | None = 0.0) -> TrainingRunStore:
    store = TrainingRunStore(LocalStorage(folder))
    store.write_config(config or {})
    for record in checkpoints:
        store.write_checkpoint(record)
        make_old(folder / "checkpoints.jsonl", 500)
    if age is not None:
        store.write_metrics({"a": 1}, 0)
        make_old(folder / "metrics.jsonl", age)
    return store


def make_old(path, age: float) -> None:
    then = time.time() - age
    os.utime(path, (then, then))


def test_runs_at_the_root_and_below_it(tmp_path):
    run(tmp_path / "one")
    run(tmp_path / "two").write_rollouts(4, [])
    (tmp_path / "not_a_run").mkdir()
    (tmp_path / "file.txt").write_text("x")
    run(tmp_path / "one" / "too_deep")
    registry = RunRegistry([LocalStorage(tmp_path)])
    assert [info.run_id for info in registry.get_runs()] == ["one", "two"]
    two = registry.get_run("two")
    assert two is not None
    assert (two.iteration_count, two.has_config, two.has_checkpoints) == (1, True, False)
    assert registry.get_training_store("two").read_metrics() == [{"step": 0, "a": 1}]
    (at_root,) = RunRegistry([LocalStorage(tmp_path / "two")]).get_runs()
    assert (at_root.run_id, at_root.prefix) == ("two", "")


def test_runs_in_any_storage(storage):
    TrainingRunStore(storage, "one").write_metrics({"a": 1}, 0)
    storage.flush()
    registry = RunRegistry([storage])
    assert registry.get_runs()[0].run_id == "one"
    assert registry.primary_storage is registry.storage_for("one") is storage
    assert registry.storage_count == 1


def test_the_same_name_in_several_places(tmp_path):
    places = [tmp_path / "a" / "runs", tmp_path / "b" / "runs", tmp_path / "c" / "old"]
    for number, place in enumerate(places):
        run(place / "x", config={"n": number})
    registry = RunRegistry([LocalStorage(place) for place in places])
    ids = [info.run_id for info in registry.refresh()]
    assert ids == ["x", "runs--x", "old--x"]
    assert [registry.get_training_store(run_id).read_config() for run_id in ids] == [
        {"n": n} for n in range(3)
    ]
    assert [registry.storage_for(run_id).url() for run_id in ids] == [str(place) for place in places]


@pytest.mark.parametrize(
    ("checkpoints", "age", "status"),
    [
        ([], 5, "running"),
        ([], 300, "idle"),
        ([], None, "idle"),
        ([{"name": "000010"}], 300, "idle"),
        ([{"name": "final", "final": True}], 600, "completed"),
        ([{"name": "final"}], 600, "completed"),
        ([{"name": "final", "final": True}], 5, "running"),  # made longer, and going on
        ([{"name": "final", "final": True}, {"name": "000020"}], 300, "idle"),  # and stopped
    ],
)
def test_status(tmp_path, checkpoints, age, status):
    run(tmp_path, checkpoints=checkpoints, age=age)
    assert RunRegistry([LocalStorage(tmp_path)]).get_runs()[0].status == status


def test_a_run_that_has_just_ended_is_completed(tmp_path):
    store = run(tmp_path, age=5)
    store.write_checkpoint({"name": "final", "final": True})
    assert RunRegistry([LocalStorage(tmp_path)]).get_runs()[0].status == "completed"


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"__class__": "tinker_cookbook.supervised.train.Config", "loss_fn": "x"}, "sl"),
        ({"__class__": "tinker_cookbook.rl.train.Config"}, "rl"),
        ({"__class__": "tinker_cookbook.preference.train_dpo.Config", "num_epochs": 1}, "dpo"),
        ({"__class__": "mine.Config", "loss_fn": "ppo"}, "rl"),
        ({"dpo_beta": 0.1, "num_epochs": 1}, "dpo"),
        ({"loss_fn": "ppo"}, "rl"),
        ({"num_epochs": 1}, "sl"),
        ({}, None),
    ],
)
def test_training_type(tmp_path, config, kind):
    run(tmp_path, config=config)
    assert RunRegistry([LocalStorage(tmp_path)]).get_runs()[0].training_type == kind


def test_one_broken_config_does_not_hide_the_others(tmp_path):
    run(tmp_path / "good")
    run(tmp_path / "bad")
    (tmp_path / "bad" / "config.json").write_text("{")
    assert len(RunRegistry([LocalStorage(tmp_path)]).get_runs()) == 2


def test_unknown_runs_and_new_ones(tmp_path):
    run(tmp_path / "one")
    registry = RunRegistry([LocalStorage(tmp_path)])
    assert registry.get_run("two") is None
    run(tmp_path / "two")
    with pytest.raises(KeyError, match="there are: one"):
        registry.get_training_store("two")
    registry.refresh()
    assert registry.get_run("two") is not None


def test_evaluations_beside_the_runs(tmp_path):
    registry = RunRegistry([LocalStorage(tmp_path)])
    assert registry.get_eval_store() is None
    run_id = EvalStore(tmp_path / "eval").create_run("m", ["b"])
    found = registry.get_eval_store()
    assert found is not None
    assert [each.run_id for each in found.list_runs()] == [run_id]


def test_every_public_name_is_there():
    assert all(hasattr(stores, name) for name in stores.__all__)
