"""Write the tables of benchmarks/README.md anew from the figures that were measured.

python -m benchmarks.peers.table
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.limits import RESULTS
from benchmarks.peers.workloads import OURS

README = Path(__file__).parent.parent / "README.md"
NAMES = {
    OURS: "ours, HTTP and SDK",
    "library": "our library alone",
    "transformers": "transformers generate",
    "vllm": "vLLM, CPU",
    "llama_cpp": "llama.cpp, F16",
    "trl": "TRL",
    "trl_checkpointing": "TRL, checkpointing",
}
COLUMNS = ("", "tokens/s", "seconds (least–most)", "ours is … as fast", "peak MB", "our share of memory")


def main() -> None:
    text = README.read_text(encoding="utf-8")
    for name, made in (("peers", peers()), ("growth", growth())):
        text = between(text, name, made)
    README.write_text(text, encoding="utf-8")


def between(text: str, name: str, made: str) -> str:
    """With `made` in place of what stood between the two marks of that name."""
    begin, end = f"<!-- {name}: made by benchmarks.peers.table -->", f"<!-- end of {name} -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"the marks {begin} and {end} are not in the text")
    return f"{before}{begin}\n{made}\n{end}{after}"


def peers() -> str:
    path = RESULTS / "peers.json"
    if not path.exists():
        return "Not measured yet."
    report = json.loads(path.read_text())
    machine = report["machine"]
    head = f"{report['model']} in float32 on {machine['cores']} cores of {machine['cpu']} ({machine['instructions']})."
    return "\n\n".join([head, versions(report), *map(workload_table, report["workloads"].values())])


def versions(report: Mapping[str, Any]) -> str:
    found: dict[str, str] = {}
    for workload in report["workloads"].values():
        for contestant in workload["contestants"].values():
            found |= contestant["versions"]
    return f"Versions: {', '.join(f'{name} {found[name]}' for name in sorted(found))}."


def workload_table(workload: Mapping[str, Any]) -> str:
    title = f"**{workload['what']}** ({workload['tokens']:,} tokens, {workload['rounds']} rounds)"
    lines = [_line(COLUMNS), "|---" + "|---:" * (len(COLUMNS) - 1) + "|"]
    for name, figures in workload["contestants"].items():
        least, most = figures["seconds_least_and_most"]
        ratio = workload["ratios"].get(name, {})
        lines.append(
            _line(
                (
                    NAMES[name],
                    f"{figures['tokens_per_second']:.0f}",
                    f"{figures['seconds']:.2f} ({least:.2f}–{most:.2f})",
                    _ratio(ratio, "times_as_fast", "×"),
                    f"{figures['peak_mb']:,}",
                    _ratio(ratio, "share_of_memory", ""),
                )
            )
        )
    return "\n".join([title, "", *lines])


def growth() -> str:
    path = RESULTS / "growth.json"
    if not path.exists():
        return "Not measured yet."
    report = json.loads(path.read_text())
    sections: list[str] = []
    for panel in report["panels"]:
        xs = [_number(point["x"]) for point in panel["points"]]
        lines = [_line((panel["x"], *xs)), "|---" + "|---:" * len(xs) + "|"]
        lines.append(_line((panel["y"], *(f"{point['y']:.3g}" for point in panel["points"]))))
        sections.append("\n".join([f"**{panel['title']}**", "", *lines]))
    return "\n\n".join(sections)


def _ratio(ratio: Mapping[str, Any], name: str, unit: str) -> str:
    if name not in ratio:
        return ""
    goal = ratio.get(f"goal_{name}")
    return f"{ratio[name]:.2f}{unit}" + (f" (goal {goal:g}{unit})" if goal is not None else "")


def _number(value: float) -> str:
    return f"{value:,g}" if value == int(value) else str(value)


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
