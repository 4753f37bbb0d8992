"""Every relative link of every Markdown file leads to a file that is there, and every anchor to a heading."""

import re
import subprocess
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parent.parent
FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+).+?\1", re.DOTALL)
INLINE = re.compile(r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
DEFINED = re.compile(r"^\[(?!\^)[^\]]+\]:\s*(\S+)", re.MULTILINE)  # [name]: target; [^1]: is a footnote
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
ANCHOR = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)  # https:, mailto:


def markdown_files() -> list[Path]:
    """Those of the repository, also when they are new; where there is no git, all but those of environments."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
            "\n"
        )
    except (OSError, subprocess.CalledProcessError):
        listed = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*.md") if ".venv" not in path.parts]
    return sorted(ROOT / name for name in listed if name and (ROOT / name).is_file())


def links(text: str) -> Iterator[str]:
    prose = CODE.sub("", FENCED.sub("", text))
    yield from INLINE.findall(prose)
    yield from DEFINED.findall(prose)


def anchors(text: str) -> set[str]:
    """As GitHub makes them: lower case, punctuation dropped, spaces as dashes, and -1, -2 after repetitions."""
    found = set(ANCHOR.findall(text))
    for heading in HEADING.findall(FENCED.sub("", text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        kept = (c for c in plain if c in " -_" or unicodedata.category(c)[0] in "LNM")
        slug = "".join(kept).replace(" ", "-")
        number = 0
        while (name := f"{slug}-{number}" if number else slug) in found:
            number += 1
        found.add(name)
    return found


def broken(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    wrong: list[str] = []
    for link in links(text):
        if ELSEWHERE.match(link):
            continue
        name, _, anchor = unquote(link).partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.is_relative_to(ROOT) or not target.exists():
            wrong.append(f"{link}: there is no {target}")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text(encoding="utf-8")):
            wrong.append(f"{link}: {target.name} has no heading of that name")
    return wrong


@pytest.mark.parametrize("path", markdown_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_resolve(path: Path):
    assert broken(path) == []


def test_the_check_finds_what_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tests.test_links.ROOT", tmp_path)
    (tmp_path / "other.md").write_text("# One `two`, three!\n# Twice\n# Twice\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md#one-two-three) [b](other.md#twice-1) ![c](gone.png) [d](other.md#no) [e](https://x.org/#y)\n"
        '`[f](code.md)`\n```\n[g](fenced.md)\n```\n[`h`](other.md "title") [i](#nowhere)\n\n[j]: gone.md\n'
    )
    assert [wrong.split(":")[0] for wrong in broken(page)] == [
        "gone.png",
        "other.md#no",
        "#nowhere",
        "gone.md",
    ]
