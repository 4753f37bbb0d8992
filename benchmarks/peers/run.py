"""Ours and the others in turns, round by round, on SmolLM2-135M in float32.

    python -m benchmarks.peers.run [WORKLOAD]... [--rounds 5] [--environments build/peers]
                                            writes benchmarks/results/peers.json, a workload at a time
    python -m benchmarks.peers.run --quick  the same in small, to see that all of it runs; writes build/peers/quick.json

Before: python -m benchmarks.peers.environments, and tinker-engine pull HuggingFaceTB/SmolLM2-135M-Instruct. Let the
machine do nothing else meanwhile. All contestants of a workload are loaded at once and wait without computing; who
begins a round changes from round to round.
"""

import argparse
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tqdm import tqdm

from benchmarks.limits import RESULTS, machine
from benchmarks.peers import gguf_f16
from benchmarks.peers.environments import FOLDER
from benchmarks.peers.figures import Figures, agreement, contestant_figures, ratios
from benchmarks.peers.processes import Contestant, Worker, python_of
from benchmarks.peers.workloads import OURS, QUICK, WORKLOADS, Context, Message, Workload
from benchmarks.recipe_runs import cpu_seconds, end_with_children, stolen_since
from tinker_cookbook.tokenizer_utils import get_tokenizer
from tinker_engine.model.folders import resolve

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"


def main() -> None:
    chosen = parse()
    end_with_children()
    workloads = QUICK if chosen.quick else WORKLOADS
    rounds = 1 if chosen.quick else chosen.rounds
    out = chosen.out or (chosen.environments / "quick.json" if chosen.quick else RESULTS / "peers.json")
    report = json.loads(out.read_text()) if out.exists() else {}
    with tempfile.TemporaryDirectory() as scratch:
        context = make_context(chosen.environments, Path(scratch))
        for name in chosen.workloads or workloads:
            workload = workloads[name]
            contestants = present(workload, chosen.environments, chosen.without)
            figures = measure(workload, contestants, context, rounds, chosen.environments)
            print(json.dumps({name: figures["ratios"], "agreement": figures["agreement"]}), flush=True)
            measured = {**report.get("workloads", {}), name: figures}
            command = f"python -m benchmarks.peers.run{' --quick' if chosen.quick else ''}"
            report = {"command": command, "model": MODEL, "machine": machine()}
            report["workloads"] = {key: measured[key] for key in workloads if key in measured}
            out.write_text(json.dumps(report, indent=1) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", choices=[*WORKLOADS, []], help="default: all")
    parser.add_argument("--rounds", type=int, default=5, help="that count, after the warm-up")
    parser.add_argument("--environments", type=Path, default=FOLDER)
    parser.add_argument("--without", nargs="+", default=[], metavar="NAME", help="contestants to leave out")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def make_context(environments: Path, scratch: Path) -> Context:
    folder = resolve(MODEL)
    gguf = environments / f"{folder.name}.f16.gguf"
    if not gguf.exists():
        environments.mkdir(parents=True, exist_ok=True)
        gguf_f16.write(folder, gguf)
    threads = os.cpu_count() or 1
    return Context(MODEL, folder, gguf.resolve(), get_tokenizer(MODEL), threads, scratch)


def present(workload: Workload, environments: Path, without: list[str]) -> dict[str, Contestant]:
    """Those that are installed and wanted; ours is always among them."""
    found: dict[str, Contestant] = {}
    for name, contestant in workload.contestants.items():
        environment = contestant.environment
        if environment is not None and not python_of(environments, environment).exists():
            print(f"{name} is left out; type: python -m benchmarks.peers.environments {environment}")
        elif name == OURS or name not in without:
            found[name] = contestant
    return found


def measure(
    workload: Workload, contestants: dict[str, Contestant], context: Context, rounds: int, environments: Path
) -> Figures:
    setup = workload.setup(context, rounds)
    load, before = os.getloadavg()[0], cpu_seconds()
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name, contestant in contestants.items():
            log = context.scratch / f"{name}.log"
            message = setup | dict(contestant.options)
            workers[name] = Worker(name, contestant.command(environments), message, log)
            stack.callback(workers[name].stop)
        warm_ups = {name: worker.ask(workload.job(context, 0)) for name, worker in workers.items()}
        answers: dict[str, list[Figures]] = {name: [] for name in workers}
        for number in tqdm(range(1, rounds + 1), desc=workload.what, unit="round", file=sys.stderr):
            job = workload.job(context, number)
            for name in turned(list(workers), number):
                answers[name].append(timed(workers[name], job))
                tqdm.write(f"{name}: {answers[name][-1]['seconds']:.1f} s", file=sys.stderr)
        figures = {
            name: {
                **contestant_figures(answers[name], workload.tokens, worker.peak_mb()),
                **worker.about,
                "command": contestants[name].described(),
            }
            for name, worker in workers.items()
        }
    return {
        "what": workload.what,
        "tokens": workload.tokens,
        "rounds": rounds,
        "load_before": round(load, 2),
        **stolen_since(before),
        "ratios": ratios(figures, workload),
        "agreement": agreement(warm_ups),
        "contestants": figures,
    }


def timed(worker: Worker, job: Message) -> Figures:
    before = worker.cpu_seconds()
    answer = worker.ask(job)
    return {**answer, "cpu_seconds": worker.cpu_seconds() - before}


def turned(names: list[str], number: int) -> list[str]:
    first = number % len(names)
    return names[first:] + names[:first]


if __name__ == "__main__":
    main()
