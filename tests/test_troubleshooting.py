"""Messages that the page on troubleshooting quotes are messages that the code has.

A quoted message is text in backticks in the first column of a table; `…` stands for whatever is put in there.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "troubleshooting.md"
GAP = "…"
LEAST = 8  # letters of a piece, below which it says nothing

# Said by Python, the operating system, chz or the SDK; and names of metrics and settings.
OTHERS = {
    "No module named tinker_cookbook",
    "APIConnectionError",
    "Fatal Python error: Segmentation fault",
    "No space left on device",
    "Extraneous argument",
    "Missing required argument",
    "asyncio.run() cannot be called from a running event loop",
    "Address already in use",
    "env/all/by_group/frac_mixed",
    "tinker-engine status --watch",
}


def quoted_messages() -> list[str]:
    rows = [line.split(" | ")[0] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return [message for row in rows for message in re.findall(r"`([^`]+)`", row)]


def literals() -> Iterator[str]:
    """All strings of the two packages, with a gap for each value that is put in."""
    for package in ("tinker_cookbook", "tinker_engine"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    yield "".join(
                        part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else GAP
                        for part in node.values
                    )
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield re.sub(r"%[sdr]|%\.\d[fg]", GAP, node.value)
    yield (ROOT / "Makefile").read_text().replace("$(VENV)", ".venv")


def pieces(message: str) -> list[str]:
    """What stands between the gaps. The field that is wrong is put before a message: `data: is empty`."""
    parts = [part.strip(" .,;:") for piece in message.split(GAP) for part in piece.split(": ")]
    return [part for part in parts if len(part) >= LEAST]


def test_quoted_messages_exist():
    known = "\n".join(literals())
    wrong = [
        (message, piece)
        for message in quoted_messages()
        if not any(other in message for other in OTHERS)
        for piece in pieces(message)
        if piece not in known
    ]
    assert wrong == []
