"""Where to go on is asked of the server."""

import asyncio

import pytest
import tinker

from tests.tinker_cookbook.checkpoint_utils.fakes import FakeServer, no_connection, not_found
from tinker_cookbook.checkpoint_utils import find_resume_checkpoint
from tinker_cookbook.stores import TrainingRunStore


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def log_dir(tmp_path) -> str:
    store = TrainingRunStore.from_uri(str(tmp_path))
    store.write_checkpoint({"name": "000010", "batch": 10, "state_path": "s10"})
    store.write_checkpoint({"name": "000012", "batch": 12, "state_path": "s12", "rolling": True})
    store.write_checkpoint({"name": "weights only", "batch": 13, "sampler_path": "w13"})
    return str(tmp_path)


def found(server: FakeServer, log_dir: str) -> str | None:
    record = asyncio.run(find_resume_checkpoint(log_dir, server.service))
    return record and record.name


def test_the_newest_that_is_there(server, log_dir, caplog):
    server.stored = {"s10": 1, "s12": 2}
    assert found(server, log_dir) == "000012"
    assert not caplog.records


def test_an_expired_rolling_one_is_passed_over_by_name(server, log_dir, caplog):
    server.stored = {"s10": 1}
    assert found(server, log_dir) == "000010"
    assert "000012" in caplog.text


def test_none_left(server, log_dir, caplog):
    assert found(server, log_dir) is None
    assert "from the beginning" in caplog.text


def test_no_records(server, tmp_path, caplog):
    assert found(server, str(tmp_path / "never")) is None
    assert not caplog.records


@pytest.mark.parametrize("error", [no_connection(), not_found(500), not_found(403)])
def test_a_failure_does_not_mean_gone(server, log_dir, error):
    server.stored, server.broken = {"s10": 1}, error
    with pytest.raises(tinker.APIError):
        found(server, log_dir)


def test_gone_in_other_words(server, log_dir):
    server.broken = not_found(410)
    assert found(server, log_dir) is None


def test_log_directory_in_an_object_store(server):
    uri = "memory://bucket-of-resume/run"
    TrainingRunStore.from_uri(uri).write_checkpoint({"name": "x", "batch": 1, "state_path": "s"})
    server.stored = {"s": 1}
    assert found(server, uri) == "x"
