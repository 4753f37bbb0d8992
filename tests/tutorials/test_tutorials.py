"""Every tutorial runs as a user would run it, and what it claims holds: each ends with assertions of its own."""

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.tutorials.conftest import ROOT

TUTORIALS = sorted((ROOT / "tutorials").glob("*.py"))
SECONDS = 280  # on a machine that does other things as well; on one that does not, they take a tenth of it


@pytest.mark.long
@pytest.mark.parametrize("script", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_runs(script: Path, environment: Mapping[str, str], tmp_path: Path):
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    assert done.stdout.strip(), "it shows something"


def test_each_is_listed():
    listed = re.findall(r"\]\((\d\d_\w+\.py)\)", (ROOT / "tutorials" / "README.md").read_text())
    assert listed == [path.name for path in TUTORIALS]


@pytest.mark.parametrize("script", TUTORIALS, ids=lambda path: path.stem)
def test_each_says_how_it_is_run_and_asserts_something(script: Path):
    text = script.read_text()
    assert f"\npython tutorials/{script.name}\n" in text
    assert "# %%" in text
    assert "\nassert " in text
