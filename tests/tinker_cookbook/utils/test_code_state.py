import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tinker_cookbook.utils.code_state import code_state

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=n", "-c", "user.email=e@x"]
    return subprocess.run(
        ["git", "-C", folder, *who, *arguments], check=True, capture_output=True, text=True
    ).stdout


def module(folder: Path, name: str) -> ModuleType:
    made = ModuleType(name)
    made.__file__ = str(folder / f"{name}.py")
    return made


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path.resolve() / "mine"
    (root / "inner").mkdir(parents=True)
    (root / "train.py").write_text("lr = 1\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "start")
    return root


def test_a_clean_repository(repository: Path):
    text = code_state([module(repository, "train"), module(repository / "inner", "other")])
    commit = git(repository, "rev-parse", "HEAD").strip()
    assert text == f"### repo: {repository} @ {commit}\nmodules: train, other\n(no local changes)\n"


def test_changes_and_new_files_can_be_applied(repository: Path, tmp_path: Path):
    copy = tmp_path / "copy"
    shutil.copytree(repository, copy)
    (repository / "train.py").write_text("lr = 2\n")
    (repository / "inner" / "new.py").write_text("x = 1\n")
    (repository / ".env").write_text("KEY=not to be shown\n")
    text = code_state([module(repository, "train")])
    assert "not to be shown" not in text
    assert ".env" in text
    diff = tmp_path / "code.diff"
    diff.write_text(text)
    git(copy, "apply", str(diff))
    assert (copy / "train.py").read_text() == "lr = 2\n"
    assert (copy / "inner" / "new.py").read_text() == "x = 1\n"


def test_what_is_in_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.resolve()))
    (tmp_path / "a").mkdir()
    assert code_state([module(tmp_path.resolve() / "a", "m")]) == "### module: m (not in a git repository)\n"
    assert "### module: no_such_module (cannot be imported" in code_state(["no_such_module"])


def test_a_repository_without_commits(tmp_path: Path):
    git(tmp_path, "init", "-q")
    (tmp_path / "m.py").write_text("x = 1\n")
    text = code_state([module(tmp_path, "m")])
    assert "@ unknown" in text
    assert "+x = 1" in text


def test_without_git(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert code_state() == "### module: tinker_cookbook (git is not installed)\n"


def test_the_script_that_runs_is_covered(repository: Path):
    script = repository / "train.py"
    script.write_text(
        "from tinker_cookbook.utils.code_state import code_state\nprint(code_state(['__main__']))\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=True, env=environment, cwd="/"
    )
    assert f"### repo: {repository} @" in done.stdout
    assert "modules: __main__" in done.stdout
    assert "+print(code_state" in done.stdout
