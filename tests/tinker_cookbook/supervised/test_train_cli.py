"""What the command line decides and refuses; that it trains is in test_train_cli_engine."""

import json
import re
import threading
from types import SimpleNamespace
from typing import Any

import chz
import httpx
import pytest
import tinker
from tinker.types import RequestErrorCategory

from tests.tinker_cookbook.supervised.numbers import TINY
from tinker_cookbook import served_models, service
from tinker_cookbook.cli_utils import LogdirBehavior
from tinker_cookbook.command_line import run_command
from tinker_cookbook.exceptions import ConfigurationError, DataFormatError
from tinker_cookbook.supervised import train, train_cli
from tinker_cookbook.supervised.sample_evaluator import SampleEvaluator
from tinker_cookbook.supervised.train_cli import CLIConfig, Sizes, build_config, default_log_path
from tinker_cookbook.utils.config_dump import dump_config


@pytest.fixture(autouse=True)
def served(monkeypatch) -> list[Any]:
    models = [SimpleNamespace(model_name=TINY, max_context_length=1024, trainable=True)]

    class Fake:
        def get_server_capabilities(self) -> Any:
            return SimpleNamespace(supported_models=models)

    monkeypatch.setattr(service, "connect", lambda *_: Fake())
    return models


@pytest.fixture
def dataset(tmp_path) -> str:
    rows = [{"prompt": f"What is {i} + 1?", "completion": f"{i + 1}."} for i in range(120)]
    path = tmp_path / "my.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_everything_but_the_data_can_be_left_open(dataset):
    config = build_config(CLIConfig(dataset=dataset))
    assert config.model_name == TINY
    assert config.renderer_name == "chatml"
    assert config.learning_rate == pytest.approx(3.1e-3, rel=0.05)
    assert config.num_epochs == 3
    assert config.log_path == "runs/sft-my-tiny-chat"
    builder: Any = config.dataset_builder
    assert builder.common_config.max_length == 1024
    assert (builder.common_config.batch_size, builder.test_size) == (4, 12)
    assert [type(build()) for build in config.evaluator_builders] == [SampleEvaluator]


def test_what_is_given_is_kept(dataset):
    cli = CLIConfig(
        dataset=dataset, batch_size=7, test_size=0, learning_rate=1e-5, num_epochs=9, max_length=50
    )
    config = build_config(cli)
    builder: Any = config.dataset_builder
    assert (builder.common_config.batch_size, builder.common_config.max_length, builder.test_size) == (
        7,
        50,
        0,
    )
    assert (config.learning_rate, config.num_epochs) == (1e-5, 9)
    assert config.evaluator_builders == []


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [(1, (0, 1, 3)), (9, (0, 1, 3)), (50, (5, 2, 3)), (999, (99, 32, 3)), (100_000, (200, 64, 1))],
)
def test_sizes_suit_small_and_large_files(rows, sizes):
    assert tuple(Sizes.for_rows(rows, CLIConfig(dataset="x"))) == sizes


@pytest.mark.parametrize(
    ("dataset", "model", "path"),
    [
        ("data/my.jsonl.gz", "tinker-engine/tiny-chat", "runs/sft-my-tiny-chat"),
        ("folder/", "Qwen/Qwen3-8B:peft:131072", "runs/sft-folder-Qwen3-8B"),
        ("org/set", "a/b", "runs/sft-set-b"),
        ("odd name?.csv", "a/b", "runs/sft-odd-name-.csv-b"),
    ],
)
def test_the_log_path_is_made_of_names(dataset, model, path):
    assert default_log_path(dataset, model) == path


def test_a_model_the_server_lacks(dataset):
    with pytest.raises(
        ConfigurationError, match="the server has no model a/b; it has tinker-engine/tiny-chat"
    ):
        build_config(CLIConfig(dataset=dataset, model_name="a/b"))


def test_of_several_models_the_first_is_taken_and_said(dataset, served, caplog):
    served.append(SimpleNamespace(model_name="a/b", max_context_length=None, trainable=True))
    served.insert(0, SimpleNamespace(model_name="only/sampled", max_context_length=None, trainable=False))
    with caplog.at_level("INFO"):
        assert build_config(CLIConfig(dataset=dataset)).model_name == TINY
    assert "the server also has a/b" in caplog.text


def test_a_server_without_models(dataset, served):
    served.clear()
    with pytest.raises(ConfigurationError, match="no model that can be trained"):
        build_config(CLIConfig(dataset=dataset))


def test_a_server_that_does_not_answer_is_given_up(dataset, monkeypatch):
    over = threading.Event()
    monkeypatch.setattr(service, "connect", lambda *_: over.wait(60))
    monkeypatch.setattr(served_models, "_PATIENCE_SECONDS", 0.01)
    with pytest.raises(ConfigurationError, match="http://there does not answer"):
        build_config(CLIConfig(dataset=dataset, base_url="http://there"))
    over.set()


def test_data_is_looked_at_before_the_server_is_asked(monkeypatch):
    monkeypatch.setattr(service, "connect", lambda *_: pytest.fail("asked"))
    with pytest.raises(DataFormatError, match=r"there is no file missing\.jsonl"):
        build_config(CLIConfig(dataset="missing.jsonl"))


# --- the log directory ------------------------------------------------------------------------------------


def run_until_training(cli: CLIConfig, monkeypatch: Any) -> list[train.Config]:
    trained: list[train.Config] = []

    async def main(config: train.Config) -> None:
        trained.append(config)

    monkeypatch.setattr(train, "main", main)
    train_cli.run(cli)
    return trained


@pytest.mark.parametrize("behavior", ["delete", "resume", "raise"])
def test_a_directory_with_another_kind_of_run_is_refused(dataset, tmp_path, monkeypatch, behavior):
    log = tmp_path / "log"
    log.mkdir()
    (log / "config.json").write_text('{"__class__": "tinker_cookbook.rl.train.Config"}')
    cli = CLIConfig(dataset=dataset, log_path=str(log), behavior_if_log_dir_exists=behavior)
    with pytest.raises(
        ConfigurationError, match=r"run of another kind \(tinker_cookbook\.rl\.train\.Config\)"
    ):
        run_until_training(cli, monkeypatch)
    assert (log / "config.json").exists()


def test_a_directory_that_is_no_run_is_not_deleted(dataset, tmp_path, monkeypatch):
    cli = CLIConfig(dataset=dataset, log_path=str(tmp_path), behavior_if_log_dir_exists="delete")
    with pytest.raises(ConfigurationError, match=r"holds my\.jsonl and no run"):
        run_until_training(cli, monkeypatch)


def test_a_run_of_ours_is_resumed_or_deleted(dataset, tmp_path, monkeypatch):
    log = tmp_path / "log"
    config = build_config(CLIConfig(dataset=dataset, log_path=str(log)))
    log.mkdir()
    (log / "config.json").write_text(json.dumps(dump_config(config)))
    behaviors: list[tuple[LogdirBehavior, bool]] = [("resume", True), ("delete", False)]
    for behavior, is_kept in behaviors:
        cli = CLIConfig(dataset=dataset, log_path=str(log), behavior_if_log_dir_exists=behavior)
        assert len(run_until_training(cli, monkeypatch)) == 1
        assert log.exists() == is_kept


# --- help and errors --------------------------------------------------------------------------------------


def test_help_has_a_line_for_every_field(capsys):
    assert train_cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name in chz.chz_fields(CLIConfig):
        assert re.search(rf"^  {name} .*( - |default\)) +\w.{{10,100}}$", shown, re.M), name


def test_an_error_of_the_user_is_one_line(capsys):
    assert train_cli.main(["dataset=missing.jsonl"]) == 1
    assert capsys.readouterr().err == "error: there is no file missing.jsonl\n"


def failing(error: BaseException) -> Any:
    def command() -> None:
        raise error

    return command


def status(kind: type[tinker.APIStatusError], code: int) -> tinker.APIStatusError:
    response = httpx.Response(code, request=httpx.Request("POST", "http://there"))
    return kind("said\nno", response=response, body=None)


@pytest.mark.parametrize(
    "error",
    [
        status(tinker.BadRequestError, 400),
        status(tinker.NotFoundError, 404),
        tinker.TinkerError("said no"),
        tinker.RequestFailedError("said no", "1", RequestErrorCategory.User),
    ],
)
def test_what_the_server_says_to_the_user_is_one_line_too(error, capsys):
    assert run_command(failing(error)) == 1
    assert capsys.readouterr().err == "error: said no\n"


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a bug"),
        status(tinker.InternalServerError, 500),
        tinker.RequestFailedError("broken", "1", RequestErrorCategory.Server),
    ],
)
def test_what_is_our_fault_keeps_its_traceback(error):
    with pytest.raises(type(error)):
        run_command(failing(error))


def test_ctrl_c_is_no_error():
    assert run_command(failing(KeyboardInterrupt())) == 130
