"""Runs of the commands that users have, timed, and a file of what came out. Each is a process that starts its engine,
as a first run does; its seconds include that."""

import argparse
import json
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.limits import RESULTS, machine

Figures = dict[str, Any]
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Run:
    module: str
    arguments: tuple[str, ...] = ()
    first: str = ""  # a module that makes what the other needs

    @property
    def command(self) -> str:
        first = [f"python -m {self.first}"] if self.first else []
        return " && ".join([*first, shlex.join(["python", "-m", self.module, *self.arguments])])

    def __call__(self, folder: Path, *more: str) -> float:
        """Seconds it took. `folder` is the run's own."""
        started = time.perf_counter()
        if self.first:
            _run(self.first)
        _run(self.module, f"log_path={folder}", *self.arguments, *more)
        return time.perf_counter() - started


def _run(module: str, *arguments: str) -> None:
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def end_with_children() -> None:
    """A kill of this process is an exception like Ctrl-C, by which what it has started is ended too."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))


def cpu_seconds() -> dict[str, float]:
    """What the processors have done since the machine started."""
    return psutil.cpu_times()._asdict()


def stolen_since(before: dict[str, float]) -> Figures:
    """The share of processor time that this machine wanted and other guests of its host had. Where none is stolen, or
    the system does not count it, nothing."""
    gone = {name: now - before[name] for name, now in cpu_seconds().items()}
    wanted = sum(gone.values()) - gone["idle"] - gone.get("iowait", 0.0)
    share = round(gone.get("steal", 0.0) / max(wanted, 1e-9), 2)
    return {"stolen": share} if share else {}


def metrics_of(folder: Path) -> Rows:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def series(rows: Rows, metric: str, digits: int = 4) -> dict[int, float]:
    """By step."""
    return {row["step"]: round(row[metric], digits) for row in rows if metric in row}


def parser(
    about: str | None, names: Collection[str], *, all_by_default: bool = False
) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    if all_by_default:
        made.add_argument(
            "names", nargs="*", choices=[*names, []]
        )  # argparse wants no name to be a choice, too
    else:
        made.add_argument("names", nargs="+", choices=names)
    made.add_argument("--seeds", nargs="+", type=int, default=[0])
    made.add_argument(
        "--busy",
        action="store_true",
        help="the machine does other work too: the seconds are not to be compared",
    )
    return made


def measure_all(
    title: str,
    runs: Mapping[str, Run],
    chosen: argparse.Namespace,
    summary: Callable[[str, Path], Figures],
    *,
    more: Callable[[str], Sequence[str]] = lambda _: (),
    after: Callable[[Figures], None] = lambda _: None,
) -> None:
    """Adds to `benchmarks/results/<title>.json` what `summary` finds in the folder of each run that was asked for.

    What an earlier, other command measured under the same name is dropped. `after` is called with all there is.
    """
    end_with_children()
    path = RESULTS / f"{title}.json"
    for name in chosen.names or runs:
        run = runs[name]
        for seed in chosen.seeds:
            before = cpu_seconds()
            with tempfile.TemporaryDirectory() as folder:
                seconds = run(Path(folder) / "run", *more(name), f"seed={seed}")
                found = summary(name, Path(folder) / "run")
            busy = {"beside_other_work": True} if chosen.busy else {}
            about = {**busy, "cpu": machine()["cpu"], "seconds": round(seconds), **stolen_since(before)}
            found = about | found
            print(name, seed, json.dumps(found), flush=True)
            # Read only now: another process may have added to it meanwhile.
            figures: Figures = json.loads(path.read_text()) if path.exists() else {}
            if figures.get(name, {}).get("command") != run.command:
                figures[name] = {"command": run.command, "seeds": {}}
            by_seed = figures[name]["seeds"] | {str(seed): found}
            figures[name]["seeds"] = {key: by_seed[key] for key in sorted(by_seed, key=int)}
            measured = {key: figures[key] for key in runs if key in figures}
            head = {"command": f"python -m benchmarks.{title} {' '.join(measured)}", "machine": machine()}
            path.write_text(json.dumps(head | measured, indent=1) + "\n")
            after(measured)
