"""Every command and snippet of the concepts and how-tos runs as it stands on the page, in an empty folder."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.tutorials.conftest import ROOT
from tests.tutorials.documents import read_page

PAGES = sorted(path for folder in ("concepts", "howto") for path in (ROOT / "docs" / folder).glob("*.md"))
SECONDS = 290


@pytest.mark.long
@pytest.mark.parametrize("path", PAGES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_page_runs(path: Path, environment: Mapping[str, str], tmp_path: Path):
    page = read_page(path)
    for name, content in page.files.items():
        (tmp_path / name).write_text(content)
    if page.commands:  # in one shell: a variable that one block sets is there in the next
        _run(["bash", "-euo", "pipefail", "-c", "\n".join(page.commands)], environment, tmp_path)
    if page.script:
        (tmp_path / "page_script.py").write_text(page.script)
        _run([sys.executable, "page_script.py"], environment, tmp_path)


def _run(command: list[str], environment: Mapping[str, str], folder: Path) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


def test_pages_are_read(tmp_path: Path):
    path = tmp_path / "page.md"
    path.write_text(
        "# Page\n\n```python file=a.py\nx = 1\n```\n\n```sh\necho 1\n```\n\n```python\ny = 2\n```\ntext\n\n"
        "<!-- not run: needs a GPU -->\n```sh\necho 2\n```\n\n```\nno code\n```\n\n```python\nz = 3\n```\n"
    )
    page = read_page(path)
    assert (page.files, page.commands, page.script) == ({"a.py": "x = 1\n"}, ["echo 1\n"], "y = 2\nz = 3\n")
    assert page.not_run == ["needs a GPU"]
