"""Write the tables of benchmarks/README.md, and the short one of README.md, anew from the figures that were measured.

python -m benchmarks.peers.table
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.limits import RESULTS
from benchmarks.peers.workloads import OURS

README = Path(__file__).parent.parent / "README.md"
FRONT = README.parent.parent / "README.md"
NAMES = {
    OURS: "ours, HTTP and SDK",
    "library": "our library alone",
    "transformers": "transformers generate",
    "vllm": "vLLM, CPU",
    "llama_cpp": "llama.cpp, F16",
    "trl": "TRL",
    "trl_checkpointing": "TRL, checkpointing",
}
NOT_YET = "Not measured yet."
COLUMNS = ("", "tokens/s", "seconds (least–most)", "ours is … as fast", "peak MB", "our share of memory")


def main() -> None:
    tables = {
        "peers": peers(),
        "engine": engine(),
        "server": server(),
        "shared_prompt": shared_prompt(),
        "growth": growth(),
    }
    rewrite(README, tables)
    rewrite(FRONT, {"compare": compare()})


def rewrite(path: Path, made: Mapping[str, str]) -> None:
    text = path.read_text(encoding="utf-8")
    for name, part in made.items():
        text = between(text, name, part)
    path.write_text(text, encoding="utf-8")


def between(text: str, name: str, made: str) -> str:
    """With `made` in place of what stood between the two marks of that name."""
    begin, end = f"<!-- {name}: made by benchmarks.peers.table -->", f"<!-- end of {name} -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"the marks {begin} and {end} are not in the text")
    return f"{before}{begin}\n{made}\n{end}{after}"


def peers() -> str:
    report = _report("peers")
    if report is None:
        return NOT_YET
    return "\n\n".join([where(report), versions(report), *map(workload_table, report["workloads"].values())])


def where(report: Mapping[str, Any]) -> str:
    machine = report["machine"]
    cores = f"{machine['cores']} cores of {machine['cpu']} ({machine['instructions']})"
    return f"{report['model'].partition('/')[2]} in float32 on {cores}."


def compare() -> str:
    """A line for each piece of work: how many times as fast ours is, and our share of the other's memory."""
    report = _report("peers")
    if report is None:
        return NOT_YET
    lines = [_line(("work", "ours is … as fast as", "and takes … of its memory")), "|---|---|---|"]
    for workload in report["workloads"].values():
        others = {name: ratio for name, ratio in workload["ratios"].items() if name != "library"}
        speed = ", ".join(f"{NAMES[name]} {ratio['times_as_fast']:.2f}×" for name, ratio in others.items())
        memory = ", ".join(f"{ratio['share_of_memory']:.0%}" for ratio in others.values())
        lines.append(_line((workload["what"], speed, memory)))
    return "\n".join([where(report), "", *lines])


def shared_prompt() -> str:
    report = _report("shared_prompt")
    if report is None:
        return NOT_YET
    lines = [_line(("group", "seconds, shared", "seconds, plain", "times as fast")), "|---|---:|---:|---:|"]
    for name, row in report["figures"].items():
        cells = (f"{row['seconds_shared']:.2f}", f"{row['seconds_plain']:.2f}", f"{row['ratio']:.2f}×")
        lines.append(_line((name, *cells)))
    worst = max(row["relative_difference_of_gradients"] for row in report["figures"].values())
    return "\n".join([*lines, "", f"Gradients differ by {worst:.1e} of their length at most."])


def engine() -> str:
    report = _report("engine")
    if report is None:
        return NOT_YET
    lines = [_line(("work", "tokens/s", "share of what the machine can do")), "|---|---:|---:|"]
    for name, row in report["figures"].items():
        lines.append(_line((name, f"{row['tokens_per_second']:.0f}", f"{row['fraction_of_limit']:.0%}")))
    return "\n".join(lines)


def server() -> str:
    report, load = _report("server"), _report("load")
    if report is None or load is None:
        return NOT_YET
    columns = {
        "plain_engine": "plain HTTP",
        "engine_adds": "of which the engine adds",
        "sdk_engine": "tinker SDK",
        "sdk_answers_at_once": "SDK, of a server that answers at once",
    }
    lines = [_line(("call, ms", *columns.values())), "|---" + "|---:" * len(columns) + "|"]
    for kind, name in (("optim_step", "`optim_step`"), ("sample", "`sample`, one token")):
        lines.append(_line((name, *(f"{report['calls'][kind][column]:.1f}" for column in columns))))
    full = report["occupancy"]
    together = (
        f"{full['requests']} requests for {full['tokens_each']} tokens each, one after the other from one program: "
        f"a decode step has {full['mean_rows']:.1f} rows, {full['tokens_per_second']:,} tokens/s."
    )
    lasting = (
        f"{load['sampling_clients']} clients that sample and {load['training_clients']} that train: "
        f"{load['samples']:,} samples and {load['training_steps']:,} steps in {load['seconds']:.0f} s, "
        f"the checks at the end included; {load['lost']} lost, {load['wrong']} wrong."
    )
    return "\n".join([*lines, "", together, "", lasting])


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
    report = _report("growth")
    if report is None:
        return NOT_YET
    sections: list[str] = []
    for panel in report["panels"]:
        xs = [_number(point["x"]) for point in panel["points"]]
        lines = [_line((panel["x"], *xs)), "|---" + "|---:" * len(xs) + "|"]
        lines.append(_line((panel["y"], *(f"{point['y']:.3g}" for point in panel["points"]))))
        sections.append("\n".join([f"**{panel['title']}**", "", *lines]))
    return "\n\n".join(sections)


def _report(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


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
