"""`tinker-engine status`: what the running engine is doing."""

import sys
import time
from pathlib import Path
from typing import Any

from tinker_engine.commands.address import Address, ask, find
from tinker_engine.commands.table import aligned, short, size

WATCH_SECONDS = 1.0
_CLEAR = "\x1b[H\x1b[2J\x1b[3J"


def status(
    data: Path | None = None, *, url: str | None = None, key: str | None = None, watch: bool = False
) -> int:
    address = find(data, url, key)
    if not watch:
        print(_shown(address))
        return 0
    try:
        while True:
            text = _shown(address)  # before the screen is cleared, so that it does not flicker
            print(f"{_CLEAR if sys.stdout.isatty() else ''}{text}", flush=True)
            time.sleep(WATCH_SECONDS)
    except KeyboardInterrupt:
        return 0


def _shown(address: Address) -> str:
    return "\n".join(describe(address.url, ask(address, "/engine/status"), time.time()))


def describe(url: str, report: dict[str, Any], now: float) -> list[str]:
    stats, rates, queued, compute = (report[name] for name in ("stats", "rates", "queued", "compute"))
    memory = compute["memory_bytes"]
    rows = [
        ("engine", f"{url}, serving {', '.join(report['models'])}"),
        (
            "compute process",
            f"pid {compute['pid']}, {size(memory)}" if memory is not None else "being started",
        ),
        ("restarts", f"{report['restarts']} (see the engine's log)" if report["restarts"] else "none"),
        ("training", f"{rates['trained_tokens']:,.0f} tokens/s, {queued['training']} requests waiting"),
        (
            "sampling",
            f"{rates['sampled_tokens']:,.0f} tokens/s and {rates['prompt_tokens']:,.0f} of prompts, "
            f"{queued['sampling']} requests waiting",
        ),
        ("decoding now", f"{stats.get('rows', 0):.0f} samples; {rates['batch']:.1f} per step lately"),
        ("key/value cache", f"{stats.get('cache_use', 0):.0%} in use"),
        (
            "since its start",
            f"{short(stats.get('trained_tokens', 0))} tokens trained, {short(stats.get('sampled_tokens', 0))} sampled",
        ),
        (
            "in memory",
            f"{stats.get('runs_in_memory', 0):.0f} runs of {stats.get('runs', 0):.0f} that are open, "
            f"{stats.get('snapshots_in_memory', 0):.0f} snapshots",
        ),
    ]
    return [*aligned(rows), "", *_runs(report["runs"], now)]


def _runs(runs: list[dict[str, Any]], now: float) -> list[str]:
    if not runs:
        return ["no training runs"]
    rows = [
        (
            run["id"],
            run["base_model"],
            str(run["rank"]),
            str(run["queued"]),
            f"{_ago(now - run['used'])}{'; corrupted: ' + run['corrupted'] if run['corrupted'] else ''}",
        )
        for run in runs
    ]
    return aligned([("RUN", "MODEL", "RANK", "WAITING", "LAST USED"), *rows], right=(2, 3))


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"
