"""Write down what each version of the SDK can do with the server: `docs/sdk_conformance.md`."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

COMMAND = "tinker "
SECTIONS = ("ServiceClient", "TrainingClient", "SamplingClient", "RestClient")
SYMBOLS = {"works": "works", "absent": "–", "failed": "**fails**"}
STATUSES = ("works", "refuses", "absent", "failed")
TWIN = "_async"

INTRODUCTION = """\
# What the `tinker` SDK can do with this server

Every public method of the SDK's clients and every command of its CLI, with the SDK unchanged, against a real
server process with the tiny model. Server version {server}. Written by

    python -m scripts.sdk_conformance

which makes an environment for each version of the SDK and ends with exit code 1 if a check fails.
The checks are in `tests/conformance`; `make test` runs them with the SDK that is installed.

- **works**: values were checked, not only that there was an answer
- **–**: this version of the SDK has no such method, option or command
- **refuses**: the server does not do it and says so at once; the note has the error the user sees
- **fails**: it does not do what the SDK expects of it

A method and its `{twin}` twin share a row where they came out the same.
"""


@dataclass(frozen=True)
class Result:
    """What one check of one version came to."""

    row: str
    status: str
    error: str
    message: str


Results = Mapping[str, Sequence[Result]]  # by version


class Notes:
    """Footnotes, one for each different refusal."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def cell(self, result: Result) -> str:
        if result.status != "refuses":
            return SYMBOLS[result.status]
        text = f"`{result.error}`: {plain(result.message)}"
        return f"refuses[^{self._numbers.setdefault(text, len(self._numbers) + 1)}]"

    def lines(self) -> list[str]:
        return [f"[^{number}]: {text}" for text, number in self._numbers.items()]


def report(server: str, results: Results, not_local: Mapping[str, str]) -> str:
    notes = Notes()
    parts = [INTRODUCTION.format(server=server, twin=TWIN), _counts(results)]
    for section in SECTIONS:
        parts += [f"## `{section}`", _table(f"{section}.", results, notes)]
    parts += ["## The `tinker` command", _table(COMMAND, results, notes)]
    parts += [f"`{command}` is not checked: it {reason}." for command, reason in not_local.items()]
    parts += ["## Notes", "\n".join(notes.lines())]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def plain(message: str) -> str:
    """One line that is the same in every run: without ids and without line breaks."""
    text = re.sub(r"\sfor self\.request_id=.*", "", message, flags=re.DOTALL)  # the SDK's own notes
    text = re.sub(r"\{'error': (['\"])(.*?)\1, .*\}", r"\2", text, flags=re.DOTALL)  # the rest repeats it
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{16,}", "ID", text)
    text = re.sub(r":(train|sample):\d+", r":\1:N", text)
    text = re.sub(r"\bcheck-\d+\b", "NAME", text)
    return " ".join(text.split()).replace("|", "\\|")


def _counts(results: Results) -> str:
    lines = ["| SDK | works | refuses | absent | fails |", "|---|---|---|---|---|"]
    for version, outcomes in results.items():
        counts = Counter(one.status for one in outcomes)
        lines.append(f"| {version} | {' | '.join(str(counts[status]) for status in STATUSES)} |")
    return "\n".join(lines)


def _table(prefix: str, results: Results, notes: Notes) -> str:
    cells: dict[str, list[str]] = {}
    for outcomes in results.values():
        for result in outcomes:
            if result.row.startswith(prefix):
                cells.setdefault(result.row.removeprefix(prefix), []).append(notes.cell(result))
    lines = ["| | " + " | ".join(results) + " |", "|---|" + "---|" * len(results)]
    for name in _in_order(cells):
        twin = f"{name}{TWIN}"
        if name.endswith(TWIN) and cells.get(name.removesuffix(TWIN)) == cells[name]:
            continue
        label = f"{_code(name)}, `{TWIN}`" if cells.get(twin) == cells[name] else _code(name)
        lines.append(f"| {label} | " + " | ".join(cells[name]) + " |")
    return "\n".join(lines)


def _in_order(names: Mapping[str, object]) -> list[str]:
    """Methods with their options and cases behind them, in the order of the checks."""
    first_seen: dict[str, int] = {}
    for position, name in enumerate(names):
        first_seen.setdefault(_method(name), position)
    return sorted(names, key=lambda name: first_seen[_method(name)])


def _method(name: str) -> str:
    return re.split(r"[(,]", name)[0]


def _code(name: str) -> str:
    """`method(option=…)` as code; in `method, with a case` only the method is."""
    method, comma, case = name.partition(", ")
    return f"`{method}`{comma}{case}"
