"""What reinforcement learning reaches on this machine, and how long it takes, through the commands that users have.

    python -m benchmarks.rl NAME... [--seeds 0 1 2]       adds to benchmarks/results/rl.json, and a plot each as PNG

Every run is a process of its own that starts its engine, as a first run does; its seconds include that. The model of a
name that begins with smollm2 has to be pulled before: tinker-engine pull HuggingFaceTB/SmolLM2-135M-Instruct. Those of
reasoning-gym need that package: pip install reasoning-gym.
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
FORM = "env/all/format"
LOSSES = ("importance_sampling", "cispo", "dro", "gspo")
LOSS_RUNS = {"tiny_arithmetic": "ppo"} | {f"tiny_arithmetic_{loss}": loss for loss in LOSSES}
SMOLLM2 = ["model_name=HuggingFaceTB/SmolLM2-135M-Instruct", "batch_size=16", "learning_rate=1e-3"]
BARE = "include_fewshot=False,format_coef=0.0"
ONE_DIGIT = [
    f"env_options=largest=9,{BARE}",
    "max_tokens=12",
    "test_size=60",
    "eval_every=8",
    "eval_temperature=0.0",
]
TWO_DIGITS = [f"env_options=largest=99,{BARE}", "max_tokens=12", "test_size=100", "eval_every=20"]
TWO_DIGITS += ["batch_size=24", "learning_rate=4e-4", "lr_schedule=constant", "num_substeps=1"]
GYM = ["eval_every=8", "max_steps=16"]
ONE_DIGIT_NUMBERS = "extraction=last_number,config.min_digits=1,config.max_digits=1"
TWO_TERMS = "config.min_terms=2,config.max_terms=2"

RUNS: dict[str, list[str]] = {
    "tiny_arithmetic": [],
    "tiny_arithmetic_streaming": ["num_minibatches=4"],
    "tiny_arithmetic_async": ["max_steps_off_policy=2"],
    **{f"tiny_arithmetic_{loss}": [f"loss_fn={loss}"] for loss in LOSSES},
    "tiny_formats": [
        "env=formats",
        "env_options=task_options.forms=upper+brackets+json",
        "learning_rate=2e-3",
        "max_steps=50",
    ],
    "tiny_sort": [
        "env=sort",
        "env_options=task_options.kinds=letters,task_options.longest=3",
        "max_steps=50",
    ],
    "smollm2_addition": [*SMOLLM2, "env=addition", *ONE_DIGIT, "max_steps=8"],
    "smollm2_multiplication": [*SMOLLM2, "env=multiplication", *ONE_DIGIT, "max_steps=8"],
    "smollm2_two_digit_addition": [SMOLLM2[0], "env=addition", *TWO_DIGITS, "max_steps=40"],
    "smollm2_chain_sum": [
        *SMOLLM2,
        "env=reasoning_gym/chain_sum",
        f"env_options={ONE_DIGIT_NUMBERS},config.min_terms=2,config.max_terms=3",
        *GYM,
        "test_size=60",
        "max_tokens=12",
    ],
    "smollm2_products": [
        *SMOLLM2,
        "env=reasoning_gym/products",
        f"env_options={ONE_DIGIT_NUMBERS},{TWO_TERMS}",
        *GYM,
        "test_size=20",  # of the 81 there are
        "max_tokens=12",
    ],
    "smollm2_syllogism": [*SMOLLM2, "env=reasoning_gym/syllogism", *GYM, "test_size=60", "max_tokens=8"],
}
"""Arguments of `python -m tinker_cookbook.rl.train_cli`; none are its defaults."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", choices=RUNS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument(
        "--busy",
        action="store_true",
        help="the machine does other work too: the seconds are not to be compared",
    )
    chosen = parser.parse_args()
    path = RESULTS / "rl.json"
    figures: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for name in chosen.names:
        arguments = " ".join(RUNS[name])
        if figures.get(name, {}).get("arguments") != arguments:
            figures[name] = {"arguments": arguments, "seeds": {}}
        for seed in chosen.seeds:
            with tempfile.TemporaryDirectory() as folder:
                seconds, rows = run([*RUNS[name], f"seed={seed}"], Path(folder))
            busy = {"beside_other_work": True} if chosen.busy else {}
            figures[name]["seeds"][str(seed)] = busy | summary(seconds, rows)
            print(name, seed, json.dumps(figures[name]["seeds"][str(seed)]), flush=True)
            write(path, figures)
            draw(figures)


def write(path: Path, figures: dict[str, Any]) -> None:
    names = [name for name in RUNS if name in figures]
    head = {"command": "python -m benchmarks.rl " + " ".join(names), "machine": machine()}
    path.write_text(json.dumps(head | {name: figures[name] for name in names}, indent=1) + "\n")


def draw(figures: dict[str, Any]) -> None:
    """A plot for each run with its seeds, and one with the losses side by side. Old results may have no curves."""
    measured = {name: figures[name]["seeds"] for name in RUNS if name in figures}
    curves = {
        name: {f"seed {seed}": curve(result) for seed, result in seeds.items()}
        for name, seeds in measured.items()
        if all("rewards" in result for result in seeds.values())
    }
    for name, by_seed in curves.items():
        if name not in LOSS_RUNS or name == "tiny_arithmetic":
            save_comparison_png(by_seed, RESULTS / f"rl_{name}.png", keys=[REWARD], title=name)
    losses = {
        loss: curves[name]["seed 0"] for name, loss in LOSS_RUNS.items() if "seed 0" in curves.get(name, {})
    }
    if len(losses) > 1:
        save_comparison_png(losses, RESULTS / "rl_losses.png", keys=[REWARD], title="losses, seed 0")


def curve(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"step": step, REWARD: reward} for step, reward in enumerate(result["rewards"])]


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
    formed = [row[f"test/{FORM}"] for row in rows if f"test/{FORM}" in row]
    gaps = [row["optim/logprob_gap_max"] for row in rows if "optim/logprob_gap_max" in row]
    return {
        "seconds": round(seconds),
        "steps": len(sampled),
        "reward_of_first_step": round(sampled[0], 3),
        "reward_of_last_steps": round(sum(sampled[-3:]) / len(sampled[-3:]), 3),
        "held_out_before": round(tested[0], 3),
        "held_out_after": round(tested[-1], 3),
        "held_out_in_form_after": round(formed[-1], 3),
        "largest_logprob_gap": max(gaps),
        "rewards": [round(reward, 3) for reward in sampled],
        "held_out": {row["step"]: round(row[f"test/{REWARD}"], 3) for row in rows if f"test/{REWARD}" in row},
    }


if __name__ == "__main__":
    main()
