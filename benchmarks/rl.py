"""What reinforcement learning reaches on this machine, and how long it takes, through the commands that users have.

    python -m benchmarks.rl NAME... [--seeds 0 1 2]       adds to benchmarks/results/rl.json, and a curve each as PNG

Every run is a process of its own that starts its engine, as a first run does; its seconds include that. The model of a
name that begins with smollm2 has to be pulled before: tinker-engine pull HuggingFaceTB/SmolLM2-135M-Instruct.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.limits import RESULTS, machine
from tinker_cookbook.utils.curves import save_comparison_png

REWARD = "env/all/reward/total"
SMOLLM2 = ["model_name=HuggingFaceTB/SmolLM2-135M-Instruct"]
ONE_DIGIT = ["env_options=largest=9,include_fewshot=False,format_coef=0.0", "max_tokens=12", "test_size=60"]
SMALL_STEPS = ["batch_size=16", "learning_rate=1e-3", "eval_every=8", "eval_temperature=0.0"]

RUNS: dict[str, list[str]] = {
    "tiny_arithmetic": [],
    "tiny_arithmetic_streaming": ["num_minibatches=4"],
    "tiny_arithmetic_async": ["max_steps_off_policy=2"],
    "tiny_formats": ["env=formats", "max_steps=60"],
    "smollm2_addition": [*SMOLLM2, "env=addition", *ONE_DIGIT, *SMALL_STEPS, "max_steps=8"],
    "smollm2_multiplication": [*SMOLLM2, "env=multiplication", *ONE_DIGIT, *SMALL_STEPS, "max_steps=8"],
}
"""Arguments of `python -m tinker_cookbook.rl.train_cli`; none are its defaults."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", choices=RUNS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    chosen = parser.parse_args()
    path = RESULTS / "rl.json"
    figures: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for name in chosen.names:
        curves: dict[str, list[dict[str, Any]]] = {}
        entry = figures[name] = {"arguments": " ".join(RUNS[name]), "seeds": {}}
        for seed in chosen.seeds:
            with tempfile.TemporaryDirectory() as folder:
                seconds, rows = run([*RUNS[name], f"seed={seed}"], Path(folder))
            curves[f"seed {seed}"] = rows
            entry["seeds"][str(seed)] = summary(seconds, rows)
            print(name, seed, json.dumps(entry["seeds"][str(seed)]))
        save_comparison_png(curves, RESULTS / f"rl_{name}.png", keys=[REWARD], title=name)
        head = {
            "command": "python -m benchmarks.rl " + " ".join(key for key in RUNS if key in figures),
            "machine": machine(),
        }
        path.write_text(
            json.dumps(head | {key: figures[key] for key in RUNS if key in figures}, indent=2) + "\n"
        )


def run(arguments: list[str], folder: Path) -> tuple[float, list[dict[str, Any]]]:
    """Held-out problems are sampled at the temperature of training, unless the arguments say otherwise."""
    command = [sys.executable, "-m", "tinker_cookbook.rl.train_cli", f"log_path={folder / 'run'}"]
    defaults = ["eval_temperature=None", "save_every=0"]
    started = time.perf_counter()
    done = subprocess.run([*command, *defaults, *arguments], capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(f"{' '.join(done.args)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return seconds, [json.loads(line) for line in lines]


def summary(seconds: float, rows: list[dict[str, Any]]) -> dict[str, Any]:
    sampled = [row[REWARD] for row in rows if REWARD in row]
    tested = [row[f"test/{REWARD}"] for row in rows if f"test/{REWARD}" in row]
    gaps = [row["optim/logprob_gap_max"] for row in rows if "optim/logprob_gap_max" in row]
    return {
        "seconds": round(seconds),
        "steps": len(sampled),
        "reward_of_first_step": round(sampled[0], 3),
        "reward_of_last_steps": round(sum(sampled[-3:]) / len(sampled[-3:]), 3),
        "held_out_before": round(tested[0], 3),
        "held_out_after": round(tested[-1], 3),
        "largest_logprob_gap": max(gaps),
    }


if __name__ == "__main__":
    main()
