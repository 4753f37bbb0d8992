"""Records of checkpoints and the file they are in."""

import uuid

import pytest

from tinker_cookbook import checkpoint_utils
from tinker_cookbook.checkpoint_utils import CheckpointRecord, get_last_checkpoint, load_checkpoints_file
from tinker_cookbook.exceptions import CheckpointError
from tinker_cookbook.stores import TrainingRunStore


@pytest.fixture(params=["local", "memory"])
def log_dir(request, tmp_path) -> str:
    return str(tmp_path) if request.param == "local" else f"memory://bucket-{uuid.uuid4().hex}/run"


def test_unknown_keys_go_through():
    row = {"name": "000010", "batch": 10, "state_path": "tinker://a", "rolling": True, "elapsed_tokens": 5}
    record = CheckpointRecord.from_dict(row)
    assert record.extra == {"rolling": True, "elapsed_tokens": 5}
    assert record.to_dict() == row


def test_fields_win_over_extras(caplog):
    record = CheckpointRecord("x", epoch=1, extra={"epoch": 9, "batch": 7, "mine": 3})
    assert record.to_dict() == {"name": "x", "epoch": 1, "mine": 3}
    assert "batch" in caplog.text
    assert not record.has("batch")


def test_has_and_get():
    record = CheckpointRecord("x", batch=0, extra={"none": None})
    assert record.has("batch")
    assert not record.has("epoch")
    assert record.has("none")
    assert record.get("epoch", 5) is None
    assert record.get("none", 5) is None
    assert record.get("other", 5) == 5
    with pytest.raises(KeyError, match="has no 'other'"):
        record.get("other")


def test_records_without_a_batch_load_and_without_a_name_do_not():
    assert CheckpointRecord.from_dict({"name": "x", "state_path": "p"}).batch is None
    with pytest.raises(CheckpointError, match="needs a name"):
        CheckpointRecord.from_dict({"batch": 1})


def test_the_last_one_with_the_key(log_dir):
    store = TrainingRunStore.from_uri(log_dir)
    store.write_checkpoint({"name": "1", "state_path": "s1", "sampler_path": "w1"})
    store.write_checkpoint({"name": "2", "state_path": "s2"})
    store.write_checkpoint({"name": "3", "mine": 1})
    assert [record.name for record in load_checkpoints_file(log_dir)] == ["1", "2", "3"]
    for key, name in (("state_path", "2"), ("sampler_path", "1"), ("mine", "3")):
        record = get_last_checkpoint(log_dir, key)
        assert record is not None
        assert record.name == name
    assert get_last_checkpoint(log_dir, "no such key") is None


def test_looking_at_a_folder_does_not_make_it(tmp_path):
    folder = tmp_path / "never"
    assert load_checkpoints_file(str(folder)) == []
    assert get_last_checkpoint(str(folder)) is None
    assert not folder.exists()


def test_a_record_cut_off_by_a_crash_is_passed_over(tmp_path, caplog):
    store = TrainingRunStore.from_uri(str(tmp_path))
    store.write_checkpoint({"name": "1", "state_path": "s1"})
    with (tmp_path / "checkpoints.jsonl").open("a") as file:
        file.write('{"name": "2", "state_pa')
    record = get_last_checkpoint(str(tmp_path))
    assert record is not None
    assert record.name == "1"
    assert "skipping" in caplog.text


def test_every_public_name_is_there():
    assert all(hasattr(checkpoint_utils, name) for name in checkpoint_utils.__all__)
