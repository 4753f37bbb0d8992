import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server import running_server
from tinker_engine.cli import main
from tinker_engine.commands import doctor
from tinker_engine.commands.checks import data as data_checks
from tinker_engine.commands.checks import machine, models, network
from tinker_engine.commands.checks.finding import Finding
from tinker_engine.native import ops
from tinker_engine.store.folders import whole_folder


def only(findings: Iterator[Finding]) -> Finding:
    (finding,) = findings
    return finding


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without proxies and without TINKER_ variables."""
    names = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
    for name in (*names, *map(str.upper, names), "TINKER_BASE_URL", "TINKER_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoints" / "abc"
    with whole_folder(folder) as inside:
        (inside / "weights").write_bytes(b"weights")
    return folder


def engine_file(data: Path, pid: int, url: str = "http://127.0.0.1:9") -> None:
    (data / "engine.json").write_text(json.dumps({"pid": pid, "url": url, "key": "tml-x", "log": "log"}))


def test_a_healthy_machine_with_a_running_engine(tmp_path, plain, capsys):
    with running_server(tmp_path) as server:
        assert main(["doctor", "--data", str(server.data), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    found = {finding["what"]: finding for finding in report["findings"]}
    assert "answers at" in found["engine"]["text"]
    assert "whole" in found["database"]["text"]
    assert "sampler and trainer differ by" in found["training and sampling"]["text"]
    assert all(finding["fix"] for finding in report["findings"] if finding["level"] != "ok")


def test_one_failure_is_exit_code_1_and_warnings_are_not(tmp_path, monkeypatch, capsys):
    findings = [Finding("ok", "a", "fine"), Finding("warning", "b", "hm", "type this")]
    monkeypatch.setattr(doctor, "examine", lambda _: iter(findings))
    assert main(["doctor", "--data", str(tmp_path)]) == 0
    findings.append(Finding("failed", "c", "bad", "type that"))
    assert main(["doctor", "--data", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "FAILED   c: bad\n         → type that\n" in shown
    assert "3 checks: 1 failed, 1 warnings" in shown


def test_a_check_that_breaks_is_a_finding(tmp_path, monkeypatch):
    def broken() -> Iterator[Finding]:
        raise ZeroDivisionError("oh")
        yield

    monkeypatch.setattr(machine, "python", broken)
    first = next(doctor.examine(tmp_path))
    assert first.level == "failed"
    assert "ZeroDivisionError: oh" in first.text


def test_without_torch_what_needs_it_is_left_out(tmp_path, monkeypatch):
    def missing() -> Iterator[Finding]:
        yield Finding("failed", "torch", "cannot be imported", "pip install torch")

    monkeypatch.setattr(machine, "torch", missing)
    assert [finding.what for finding in doctor.examine(tmp_path)][-1] == "torch"


def test_kernels_that_are_not_there_are_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(ops, "serves", lambda *_: False)
    monkeypatch.setenv("TINKER_ENGINE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    finding = only(machine.kernels())
    assert finding.level == "warning"
    assert "there is no C compiler" in finding.text
    monkeypatch.setenv("TINKER_ENGINE_NATIVE", "0")
    assert only(machine.kernels()).fix == "unset TINKER_ENGINE_NATIVE"


def test_a_directory_that_is_not_there_yet_is_fine(tmp_path):
    finding = only(data_checks.directory(tmp_path / "a" / "b"))
    assert finding.level == "ok"
    assert "will be made" in finding.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder that nobody can write to")
def test_a_directory_that_cannot_be_written_to_fails():
    finding = only(data_checks.directory(Path("/proc/engine")))
    assert finding.level == "failed"
    assert "--data DIR" in (finding.fix or "")


def test_a_network_file_system_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(data_checks, "file_system", lambda _: "nfs4")
    assert only(data_checks.directory(tmp_path)).level == "warning"


def test_file_systems_are_known_by_the_nearest_mount(tmp_path, monkeypatch):
    mount = type("Mount", (), {"mountpoint": str(tmp_path), "fstype": "nfs"})()
    root = type("Mount", (), {"mountpoint": "/", "fstype": "ext4"})()
    monkeypatch.setattr(data_checks.psutil, "disk_partitions", lambda all: [root, mount])
    (tmp_path / "a").mkdir()
    assert data_checks.file_system(tmp_path / "a") == "nfs"
    assert data_checks.file_system(Path("/")) == "ext4"


@pytest.mark.parametrize(("free", "level"), [(10**8, "failed"), (10**9, "warning"), (10**11, "ok")])
def test_little_disk_is_told(tmp_path, monkeypatch, free, level):
    usage = type("Usage", (), {"free": free})()
    monkeypatch.setattr(data_checks.shutil, "disk_usage", lambda _: usage)
    assert only(data_checks.disk(tmp_path)).level == level


def test_a_damaged_database_fails(tmp_path):
    (tmp_path / "engine.db").write_bytes(b"not a database " * 100)
    finding = only(data_checks.database(tmp_path))
    assert finding.level == "failed"
    assert "backup" in (finding.fix or "")


def test_a_database_of_another_version_fails(tmp_path):
    with sqlite3.connect(tmp_path / "engine.db") as connection:
        connection.execute("CREATE TABLE meta (name TEXT, value TEXT)")
        connection.execute("INSERT INTO meta VALUES ('schema', '99')")
    connection.close()
    assert "format 99" in only(data_checks.database(tmp_path)).text


def test_whole_checkpoints_are_counted(tmp_path, checkpoint):
    assert only(data_checks.checkpoints(tmp_path)).text == "1 whole"


def test_a_changed_checkpoint_fails(tmp_path, checkpoint):
    (checkpoint / "weights").write_bytes(b"weightz")
    finding = only(data_checks.checkpoints(tmp_path))
    assert finding.level == "failed"
    assert str(checkpoint) in finding.text


def test_a_checkpoint_that_only_the_database_knows_fails(tmp_path):
    with sqlite3.connect(tmp_path / "engine.db") as connection:
        connection.execute("CREATE TABLE checkpoints (ref TEXT)")
        connection.execute("INSERT INTO checkpoints VALUES ('checkpoints/gone')")
    connection.close()
    assert "is gone" in only(data_checks.checkpoints(tmp_path)).text


def test_what_a_killed_engine_left_is_a_warning(tmp_path, monkeypatch):
    engine_file(tmp_path, pid=12345)
    monkeypatch.setattr(network.psutil, "pid_exists", lambda _: False)
    assert only(network.engine(tmp_path)).level == "warning"
    monkeypatch.setattr(network.psutil, "pid_exists", lambda _: True)
    assert only(network.engine(tmp_path)).level == "failed"


def test_an_engine_file_that_is_none_fails(tmp_path):
    (tmp_path / "engine.json").write_text("{}")
    finding = only(network.engine(tmp_path))
    assert (finding.level, finding.fix) == ("failed", f"rm {tmp_path / 'engine.json'}")


def test_a_proxy_that_catches_the_loopback_is_a_warning(plain):
    assert only(network.proxies()).level == "ok"
    plain.setenv("HTTP_PROXY", "http://proxy:3128")
    finding = only(network.proxies())
    assert finding.level == "warning"
    assert "127.0.0.1 and localhost" in finding.text
    plain.setenv("NO_PROXY", "127.0.0.1,localhost")
    assert only(network.proxies()).level == "ok"


def test_variables_that_lead_elsewhere_are_a_warning(tmp_path, plain):
    assert only(network.variables(tmp_path)).level == "ok"
    plain.setenv("TINKER_BASE_URL", "http://127.0.0.1:9/")
    assert only(network.variables(tmp_path)).fix == "unset TINKER_BASE_URL"
    engine_file(tmp_path, pid=1)
    assert only(network.variables(tmp_path)).level == "ok"
    plain.delenv("TINKER_BASE_URL")
    plain.setenv("TINKER_API_KEY", "tml-x")
    assert "hosted service" in only(network.variables(tmp_path)).text
    plain.setenv("TINKER_API_KEY", "sk-x")
    assert len(list(network.variables(tmp_path))) == 2


@pytest.mark.parametrize(
    ("version", "level"),
    [("0.24.9", "failed"), ("0.25.0", "ok"), ("0.36.2", "ok"), ("0.37.0", "warning"), ("1.0", "warning")],
)
def test_the_sdk_must_be_in_the_served_range(monkeypatch, version, level):
    monkeypatch.setattr(machine.metadata, "version", lambda _: version)
    assert only(machine.sdk()).level == level


def test_a_model_that_is_incomplete_fails(tmp_path, monkeypatch):
    monkeypatch.setenv("TINKER_ENGINE_HOME", str(tmp_path))
    broken = tmp_path / "models" / "org--broken"
    broken.mkdir(parents=True)
    (broken / "config.json").write_text("{}")
    tiny, other = models.installed()
    assert tiny.level == "ok"
    assert (other.level, other.fix) == ("failed", f"rm -r {broken} && tinker-engine pull org/broken")


@pytest.mark.parametrize("outcome", [(2.0, 1.0, 1e-3), (1.0, 2.0, 1e-6)])
def test_a_machine_that_computes_wrongly_fails(monkeypatch, outcome):
    monkeypatch.setattr(models, "_train_and_sample", lambda: outcome)
    assert only(models.at_work()).level == "failed"
