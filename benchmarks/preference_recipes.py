"""What learning from preferences reaches on this machine, and how long it takes, through the commands that users have.

    python -m benchmarks.preference_recipes NAME... [--seeds 0 1 2] [--pairs FILE]
                                                          adds to benchmarks/results/preference_recipes.json

Every run is a process of its own that starts its engine, as a first run does; its seconds include that. `smollm2_hh`
takes a file of pairs, such as harmless-base/test.jsonl.gz of Anthropic/hh-rlhf, and its model has to be pulled before:
tinker-engine pull HuggingFaceTB/SmolLM2-135M-Instruct.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.limits import RESULTS, machine

RECIPES = "tinker_cookbook.recipes.preference"


@dataclass(frozen=True)
class Run:
    module: str
    metrics: dict[str, tuple[str, ...]]  # by the folder they are in, beneath the run's
    arguments: tuple[str, ...] = ()


RUNS = {
    "dpo": Run(
        f"{RECIPES}.dpo.train", {"": ("style/preferred", "style/true", "test/accuracy", "test/margin")}
    ),
    "shorter": Run(f"{RECIPES}.shorter.train", {"": ("env/all/ac_tokens_per_turn",)}),
    "rlhf": Run(
        f"{RECIPES}.rlhf.rlhf_pipeline",
        {"sft": ("test/nll",), "rm": ("judge/accuracy",), "rl": ("judge/win_rate", "rule/win_rate")},
    ),
    "smollm2_hh": Run(
        "tinker_cookbook.preference.train_cli",
        {"": ("test/accuracy", "test/margin", "test/dpo_loss", "test/nll")},
        (
            "model_name=HuggingFaceTB/SmolLM2-135M-Instruct",
            "max_length=128",
            "test_size=400",  # of which about a third is short enough
            "batch_size=8",
            "max_steps=60",
            "eval_every=60",
            "num_samples=0",
        ),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", choices=RUNS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--pairs", help="of smollm2_hh")
    chosen = parser.parse_args()
    path = RESULTS / "preference_recipes.json"
    figures: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for name in chosen.names:
        run, pairs = RUNS[name], [f"pairs={chosen.pairs}"] if name == "smollm2_hh" else []
        entry = figures.setdefault(
            name, {"command": " ".join(["python", "-m", run.module, *run.arguments]), "seeds": {}}
        )
        for seed in chosen.seeds:
            with tempfile.TemporaryDirectory() as folder:
                entry["seeds"][str(seed)] = measure(run, [*pairs, f"seed={seed}"], Path(folder) / "run")
            print(name, seed, json.dumps(entry["seeds"][str(seed)]), flush=True)
            head = {
                "command": "python -m benchmarks.preference_recipes "
                + " ".join(n for n in RUNS if n in figures),
                "machine": machine(),
            }
            ordered = {key: figures[key] for key in RUNS if key in figures}
            path.write_text(json.dumps(head | ordered, indent=1) + "\n")


def measure(run: Run, arguments: list[str], folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", run.module, f"log_path={folder}", *run.arguments, *arguments]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return {
        "seconds": round(seconds),
        **{
            metric: values(folder / part / "metrics.jsonl", metric)
            for part, metrics in run.metrics.items()
            for metric in metrics
        },
    }


def values(file: Path, metric: str) -> dict[int, float]:
    """By step."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {row["step"]: round(row[metric], 4) for row in rows if metric in row}


if __name__ == "__main__":
    main()
