import io
import sys
import uuid

import pytest

from tinker_cookbook.cli_utils import check_log_dir, model_name_from_argv
from tinker_cookbook.exceptions import ConfigurationError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("{}\n")
    return folder


@pytest.mark.parametrize("behavior", ["delete", "resume", "ask", "raise"])
def test_a_new_directory_is_fine(tmp_path, behavior):
    check_log_dir(str(tmp_path / "new"), behavior)
    assert not (tmp_path / "new").exists()


def test_resume_keeps_and_delete_removes(run):
    check_log_dir(str(run), "resume")
    assert (run / "metrics.jsonl").exists()
    check_log_dir(f"file://{run}", "delete")
    assert not run.exists()


def test_raise_says_what_to_pass(run):
    with pytest.raises(ConfigurationError, match=r"already exists.*behavior_if_log_dir_exists=resume"):
        check_log_dir(str(run), "raise")
    assert (run / "metrics.jsonl").exists()


def test_nobody_is_asked_where_there_is_no_terminal(run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    with pytest.raises(ConfigurationError, match="behavior_if_log_dir_exists=resume"):
        check_log_dir(str(run), "ask")
    assert (run / "metrics.jsonl").exists()


def test_the_answer_is_asked_for_until_it_is_one(run, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", Terminal("what\nResume\n"))
    check_log_dir(str(run), "ask")
    assert (run / "metrics.jsonl").exists()
    assert "delete, resume or exit" in capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", Terminal("delete\n"))
    check_log_dir(str(run), "ask")
    assert not run.exists()


def test_exit_ends_the_program_without_an_error(run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Terminal("exit\n"))
    with pytest.raises(SystemExit) as caught:
        check_log_dir(str(run), "ask")
    assert caught.value.code == 0
    assert (run / "metrics.jsonl").exists()


def test_an_unknown_behavior_is_refused_even_if_nothing_is_there(tmp_path):
    with pytest.raises(ConfigurationError, match="must be delete, resume, ask or raise"):
        check_log_dir(str(tmp_path / "new"), "overwrite")  # pyright: ignore[reportArgumentType]


def test_a_log_directory_may_be_in_an_object_store():
    stores = pytest.importorskip("tinker_cookbook.stores")
    uri = f"memory://{uuid.uuid4()}/run"
    check_log_dir(uri, "raise")
    store = stores.storage_from_uri(uri)
    store.write("metrics.jsonl", b"{}\n")
    check_log_dir(uri, "resume")
    with pytest.raises(ConfigurationError, match="already exists"):
        check_log_dir(uri, "raise")
    check_log_dir(uri, "delete")
    assert not store.exists("metrics.jsonl")


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        ([], "default"),
        (["model_name=a", "lr=1", "model_name=b/c=d"], "b/c=d"),
        (["other.model_name=a", "--model_name=b"], "default"),
    ],
)
def test_the_last_model_name_wins(argv, name):
    assert model_name_from_argv(argv, "default") == name
