import json
import logging
import math
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chz
import numpy as np
import pytest
import torch

from tinker_cookbook.stores import TrainingRunStore, storage_from_uri
from tinker_cookbook.utils import ml_log
from tinker_cookbook.utils.loggers import json_file
from tinker_cookbook.utils.loggers.pretty import format_value
from tinker_cookbook.utils.ml_log import (
    JsonLogger,
    Logger,
    MultiplexLogger,
    NeptuneLogger,
    PrettyPrintLogger,
    TrackioLogger,
    WandbLogger,
    configure_logging_module,
    setup_logging,
)


@chz.chz
class Config:
    learning_rate: float = 1e-4
    api_key: str | None = None


class Recorder(Logger):
    """Fails as often as it is told to."""

    def __init__(self, failures: int = 0, url: str | None = None):
        self.calls: list[tuple] = []
        self._failures = failures
        self._url = url

    def _record(self, *call: Any) -> None:
        self.calls.append(call)
        if self._failures > 0:
            self._failures -= 1
            raise RuntimeError("the service is down")

    def log_hparams(self, config: Any) -> None:
        self._record("hparams", config)

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self._record("metrics", metrics, step)

    def log_long_text(self, key: str, text: str) -> None:
        self._record("text", key, text)

    def sync(self) -> None:
        self._record("sync")

    def close(self) -> None:
        self._record("close")

    def get_logger_url(self) -> str | None:
        return self._url


@pytest.fixture
def root_logging() -> Iterator[None]:
    """Puts back what `configure_logging_module` replaces."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers, root.level = handlers, level


def rows(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "metrics.jsonl").read_text()
    return [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]


# --- the JSON files


def test_files_of_a_run(tmp_path: Path):
    logger = JsonLogger(tmp_path)
    logger.log_hparams(Config(api_key="sk-1"))
    logger.log_metrics({"loss": np.float32(0.5), "kl": torch.tensor(1.0), "bad": math.nan}, step=0)
    logger.log_metrics({"loss": 1})
    logger.close()
    config = json.loads((tmp_path / "config.json").read_text())
    assert config == {"__class__": f"{__name__}.Config", "learning_rate": 1e-4, "api_key": "***"}
    assert rows(tmp_path) == [{"step": 0, "loss": 0.5, "kl": 1.0, "bad": "NaN"}, {"loss": 1}]
    diff = (tmp_path / "code.diff").read_text()
    assert "tinker_cookbook" in diff
    assert "__main__" in diff


def test_the_config_is_written_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    logger = JsonLogger(tmp_path)
    logger.log_hparams({"a": 1})
    logger.log_hparams({"a": 2})
    assert json.loads((tmp_path / "config.json").read_text()) == {"a": 1}
    assert "written before" in caplog.text


def test_a_changed_config_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    JsonLogger(tmp_path).log_hparams({"a": 1, "b": [1, {"c": 2}]})
    JsonLogger(tmp_path).log_hparams({"a": 1, "b": [1, {"c": 3}]})
    assert caplog.messages == ["the config has changed: b/1/c was 2, is 3"]
    assert json.loads((tmp_path / "config.json").read_text())["b"] == [1, {"c": 3}]


def test_resumed_runs_are_marked(tmp_path: Path):
    for start in range(3):
        logger = JsonLogger(tmp_path)
        logger.log_metrics({"loss": 0.5}, step=start)
        logger.log_metrics({"loss": 0.5}, step=start + 1)
        logger.close()
    assert [(row["step"], row.get("resumed")) for row in rows(tmp_path)] == [
        (0, None),
        (1, None),
        (1, 1),
        (2, 1),
        (2, 2),
        (3, 2),
    ]


def test_a_row_that_a_crash_cut_off_harms_no_other(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "loss": 1}\n{"step": 1, "lo')
    JsonLogger(tmp_path).log_metrics({"loss": 2}, step=1)
    store = TrainingRunStore(storage_from_uri(str(tmp_path)))
    assert store.read_metrics() == [{"step": 0, "loss": 1}, {"step": 1, "loss": 2, "resumed": 1}]


def test_a_bucket_has_everything_after_close():
    fsspec = pytest.importorskip("fsspec")
    bucket = fsspec.filesystem("memory")
    logger = setup_logging("memory://ml_log/run", config=Config(), do_configure_logging_module=False)
    logger.log_metrics({"loss": 1}, step=0)
    assert b"learning_rate" in bucket.cat_file("/ml_log/run/config.json")
    logger.close()
    assert json.loads(bucket.cat_file("/ml_log/run/metrics.jsonl")) == {"step": 0, "loss": 1}
    resumed = JsonLogger("memory://ml_log/run")
    resumed.log_metrics({"loss": 2}, step=0)
    resumed.close()
    lines = bucket.cat_file("/ml_log/run/metrics.jsonl").splitlines()
    assert [json.loads(line).get("resumed") for line in lines] == [None, 1]


class HeldStore(TrainingRunStore):
    """Of a bucket that is out of reach."""

    def flush(self) -> None:
        raise OSError("no network")


def test_a_bucket_out_of_reach_raises_at_the_end_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(json_file, "FLUSH_SECONDS", -1.0)
    logger = JsonLogger("ignored", HeldStore(storage_from_uri(str(tmp_path))))
    logger.log_metrics({"loss": 1}, step=0)
    assert "will try again" in caplog.text
    with pytest.raises(OSError, match="no network"):
        logger.close()


# --- several at once


def test_a_failing_backend_neither_ends_the_run_nor_costs_the_others(caplog: pytest.LogCaptureFixture):
    bad, good = Recorder(failures=100), Recorder()
    logger = MultiplexLogger([bad, good])
    logger.log_hparams({})
    for step in range(6):
        logger.log_metrics({"x": step}, step=step)
    logger.close()
    kinds = [call[0] for call in bad.calls]
    assert kinds == ["hparams", *["metrics"] * 3, "close"]
    assert len(good.calls) == 8
    assert "failed 3 times in a row" in caplog.text
    assert "missed 7 calls" in caplog.text
    assert caplog.text.count("Traceback") == 3  # once for each method


def test_a_backend_that_recovers_is_kept():
    flaky = Recorder(failures=2)
    logger = MultiplexLogger([flaky])
    for step in range(6):
        logger.log_metrics({}, step=step)
    assert len(flaky.calls) == 6


def test_the_record_must_not_fail(tmp_path: Path):
    class FullDisk(TrainingRunStore):
        def write_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
            raise OSError("no space left on device")

    other = Recorder()
    store = FullDisk(storage_from_uri(str(tmp_path)))
    for loggers in (
        [JsonLogger(tmp_path, store), other],
        [MultiplexLogger([JsonLogger(tmp_path, store)]), other],
    ):
        other.calls.clear()
        with pytest.raises(OSError, match="no space left"):
            MultiplexLogger(loggers).log_metrics({"x": 1}, step=0)
        assert other.calls == [("metrics", {"x": 1}, 0)]


def test_multiplex_passes_everything_on(tmp_path: Path):
    first, second = Recorder(), Recorder(url="https://there")
    files = JsonLogger(tmp_path)
    logger = MultiplexLogger([first, files, second])
    logger.log_hparams({"a": 1})
    logger.log_metrics({"x": 1}, step=4)
    logger.log_long_text("sample", "text")
    logger.sync()
    logger.close()
    expected = [
        ("hparams", {"a": 1}),
        ("metrics", {"x": 1}, 4),
        ("text", "sample", "text"),
        ("sync",),
        ("close",),
    ]
    assert first.calls == second.calls == expected
    assert logger.get_logger_url() == "https://there"
    assert logger.store is files.store
    assert MultiplexLogger([first]).store is None


# --- the console


def table(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, columns: int, metrics: dict
) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    with caplog.at_level(logging.INFO):
        PrettyPrintLogger().log_metrics(metrics, step=7)
    return caplog.messages[-1]


METRICS = {
    "optim/lr": 4e-7,
    "env/all/reward/total": np.float32(0.5),
    "progress/batch": 3,
    "time/policy_sample:mean": 1.25,
    "time/policy_sample:total": 10.0,
    "time/policy_sample:count": 8,
    "loss": math.nan,
    "state_path": "tinker://" + "x" * 100,
}


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_the_table_fits(columns: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    text = table(caplog, monkeypatch, columns, METRICS)
    lines = [line for line in text.splitlines() if "state_path" not in line]
    assert max(len(line) for line in lines) <= columns
    assert "\x1b" not in text
    assert "Step 7" in text
    for shown in ("4.0000e-07", "0.500000", "1.250000", "NaN", METRICS["state_path"]):
        assert shown in text
    assert ":total" not in text
    assert ":count" not in text


def test_a_wide_terminal_has_more_columns(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    metrics = {f"metric_{i:02}": i for i in range(20)}
    narrow = table(caplog, monkeypatch, 30, metrics)
    wide = table(caplog, monkeypatch, 120, metrics)
    assert max(len(line) for line in wide.splitlines()) <= 120
    assert len(wide.splitlines()) < len(narrow.splitlines()) / 2
    for text in (narrow, wide):
        words = text.split()
        assert all(words[words.index(f"metric_{i:02}") + 1] == str(i) for i in range(20))


def test_no_metrics_no_failure(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    assert "Step 7" in table(caplog, monkeypatch, 80, {})


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0.000000"), (1.5, "1.500000"), (3, "3"), (True, "True"), (-5e-5, "-5.0000e-05")],
)
def test_values_in_the_table(value: Any, shown: str):
    assert format_value(value) == shown


# --- the logging module


@pytest.mark.usefixtures("root_logging")
def test_the_log_is_appended_and_each_start_leaves_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "new" / "logs.log"
    for start in ("first run", "second"):
        monkeypatch.setattr(sys, "argv", ["train.py", f"name={start}", "api_key=sk-1", "--hf-token", "hf_2"])
        configure_logging_module(str(path))
        logging.getLogger("mine").info("hello")
    lines = path.read_text().splitlines()
    assert len(lines) == 4
    assert lines[0].endswith(
        "Command line invocation: train.py 'name=first run' 'api_key=***' --hf-token '***'"
    )
    assert "name=second" in lines[2]
    assert lines[1].startswith("mine:")
    assert lines[1].endswith("[INFO] hello")
    assert len(logging.getLogger().handlers) == 2


@pytest.mark.usefixtures("root_logging")
def test_colour_is_for_the_terminal_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    logger = setup_logging(str(tmp_path))
    logger.log_metrics({"loss": 0.5}, step=0)
    assert "\x1b[36m" in capfd.readouterr().err
    text = (tmp_path / "logs.log").read_text()
    assert "0.500000" in text
    assert "\x1b" not in text


# --- services


class FakeRun:
    def __init__(self, **made_with: Any):
        self.made_with = made_with
        self.config: dict[str, Any] = {}
        self.logged: list[tuple] = []
        self.url = "https://wandb/run"

    def log(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self.logged.append((metrics, step))

    def log_configs(self, data: dict[str, Any], cast_unsupported: bool) -> None:
        self.config.update(data)

    def log_metrics(self, data: dict[str, Any], step: float) -> None:
        self.logged.append((data, step))

    def get_run_url(self) -> str:
        return "https://neptune/run"

    def finish(self) -> None:
        self.logged.append(("finished",))

    def close(self, timeout: float) -> None:
        self.finish()


def install(monkeypatch: pytest.MonkeyPatch, name: str, **attributes: Any) -> None:
    module = types.ModuleType(name)
    module.__spec__ = types.SimpleNamespace(name=name)  # pyright: ignore[reportAttributeAccessIssue]
    vars(module).update(attributes)
    monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def no_services(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "NEPTUNE_API_TOKEN", "NEPTUNE_MODE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("wandb", "neptune_scale", "trackio"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    found = ml_log.importlib.util.find_spec
    missing = {"wandb", "neptune_scale", "trackio"}
    monkeypatch.setattr(
        ml_log.importlib.util,
        "find_spec",
        lambda name, *rest: None if name in missing and name not in sys.modules else found(name, *rest),
    )


def kinds(logger: Logger) -> list[type]:
    assert isinstance(logger, MultiplexLogger)
    return [type(each) for each in logger.loggers]


@pytest.mark.usefixtures("no_services")
def test_a_project_without_services_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    logger = setup_logging(str(tmp_path), wandb_project="p", do_configure_logging_module=False)
    assert kinds(logger) == [JsonLogger, PrettyPrintLogger]
    assert "pip install wandb" in caplog.text


@pytest.mark.usefixtures("no_services")
def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made: list[FakeRun] = []

    class FakeConfig(dict):
        def update(self, values: dict[str, Any], allow_val_change: bool = False) -> None:
            super().update(values)

    def init(**kwargs: Any) -> FakeRun:
        made.append(FakeRun(**kwargs))
        made[0].config = FakeConfig()
        return made[0]

    install(monkeypatch, "wandb", init=init)
    monkeypatch.setenv("WANDB_API_KEY", "k")
    logger = setup_logging(str(tmp_path), "p", "n", Config(api_key="s"), do_configure_logging_module=False)
    assert kinds(logger) == [JsonLogger, PrettyPrintLogger, WandbLogger]
    assert logger.get_logger_url() == "https://wandb/run"
    logger.log_metrics({"x": 1}, step=3)
    logger.close()
    assert made[0].made_with["project"] == "p"
    assert made[0].made_with["name"] == "n"
    assert made[0].config["api_key"] == "***"
    assert made[0].logged == [({"x": 1}, 3), ("finished",)]


@pytest.mark.usefixtures("no_services")
def test_neptune_takes_numbers_and_flat_configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    install(monkeypatch, "neptune_scale", Run=FakeRun)
    logger = NeptuneLogger("w/p", config={"a": {"b": [1, "x"]}}, log_dir=tmp_path, neptune_name="n")
    run = logger._run
    assert run.made_with == {"project": "w/p", "experiment_name": "n", "log_directory": str(tmp_path)}
    assert run.config == {"parameters/a/b/0": 1, "parameters/a/b/1": "x"}
    logger.log_metrics({"x": np.float32(0.5), "t": torch.tensor(2), "path": "text", "bad": math.nan}, step=4)
    logger.log_metrics({"x": 1})
    assert run.logged == [({"x": 0.5, "t": 2.0}, 4), ({"x": 1.0}, 5)]


@pytest.mark.usefixtures("no_services")
def test_trackio_gets_no_reserved_names(monkeypatch: pytest.MonkeyPatch):
    install(monkeypatch, "trackio", init=lambda **kwargs: FakeRun(**kwargs))
    logger = TrackioLogger("p", config=Config(), trackio_name="n")
    made_with = logger._run.made_with
    assert made_with["config"] == {"class": f"{__name__}.Config", "learning_rate": 1e-4, "api_key": None}
    logger.log_metrics({"x": np.float32(0.5)}, step=1)
    logger.close()
    assert logger._run.logged == [({"x": 0.5}, 1), ("finished",)]


@pytest.mark.usefixtures("no_services")
def test_a_service_that_cannot_be_reached_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def fail(**kwargs: Any) -> None:
        raise ConnectionError("no route")

    install(monkeypatch, "wandb", init=fail)
    install(monkeypatch, "trackio", init=lambda **kwargs: FakeRun(**kwargs))
    monkeypatch.setenv("WANDB_API_KEY", "k")
    logger = setup_logging(str(tmp_path), "p", do_configure_logging_module=False)
    assert kinds(logger) == [JsonLogger, PrettyPrintLogger, TrackioLogger]
    assert "no route" in caplog.text


def test_importing_loads_no_service_and_no_framework():
    code = (
        "import sys, tinker_cookbook.utils.ml_log\n"
        "heavy = {'torch', 'numpy', 'transformers', 'wandb', 'trackio', 'neptune_scale', 'fsspec', 'tinker'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
