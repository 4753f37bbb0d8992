"""The vocabulary of all checks."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "failed"]


@dataclass(frozen=True)
class Finding:
    level: Level
    what: str  # was looked at
    text: str  # was found
    fix: str | None = None  # what to type or change


def ok(what: str, text: str) -> Finding:
    return Finding("ok", what, text)


def warning(what: str, text: str, fix: str) -> Finding:
    return Finding("warning", what, text, fix)


def failed(what: str, text: str, fix: str) -> Finding:
    return Finding("failed", what, text, fix)
