"""Every recipe's small variant, run as its README says, and the page that tells what came of it.

    python -m benchmarks.ledger             all of them (half an hour on two cores)
    python -m benchmarks.ledger NAME... [--seeds 0 1]

adds to benchmarks/results/ledger.json and writes docs/ledger.md. `reasoning_gym` needs the package of that name.
"""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.limits import RESULTS
from benchmarks.recipe_runs import Figures, Run, measure_all, metrics_of, parser, series

RECIPES = "tinker_cookbook.recipes"
GAMES = f"{RECIPES}.multiplayer_rl"
PREFERENCE = f"{RECIPES}.preference"
PAGE = RESULTS.parents[1] / "docs" / "ledger.md"
REWARD = "env/all/reward/total"
TEST_REWARD = f"test/{REWARD}"


@dataclass(frozen=True)
class Entry:
    """A recipe, and the metrics that tell what it learned: from the first row that has them to the last."""

    run: Run
    metrics: tuple[str, ...]
    part: str = ""  # of the run's folder, where metrics.jsonl is


def _entry(module: str, *metrics: str, arguments: tuple[str, ...] = (), part: str = "") -> Entry:
    return Entry(Run(module, arguments), metrics, part)


ENTRIES: dict[str, Entry] = {
    "sl_loop": _entry(f"{RECIPES}.sl_loop", "train_mean_nll"),
    "sl_basic": _entry(f"{RECIPES}.sl_basic", "test/nll", "test/in_style_and_true"),
    "chat_sl": _entry(f"{RECIPES}.chat_sl.train", "test/nll", "test/in_style_and_true"),
    "prompt_distillation": Entry(
        Run(f"{RECIPES}.prompt_distillation.train", first=f"{RECIPES}.prompt_distillation.create_data"),
        ("test/accuracy", "test/in_label_set"),
    ),
    "rl_loop": _entry(f"{RECIPES}.rl_loop", "reward/total"),
    "rl_basic": _entry(f"{RECIPES}.rl_basic", REWARD, TEST_REWARD),
    "math_rl": _entry(f"{RECIPES}.math_rl.train", REWARD, TEST_REWARD),
    "reasoning_gym": _entry(f"{RECIPES}.reasoning_gym.train", REWARD, "test/env/all/score"),
    "rubric": _entry(f"{RECIPES}.rubric.train", REWARD, TEST_REWARD, "test/env/all/reply_chars"),
    "custom_env": _entry(
        "tinker_cookbook.rl.train_cli",
        REWARD,
        TEST_REWARD,
        arguments=(f"env={RECIPES}.custom_env.env:MyDatasetBuilder", "max_steps=30"),
    ),
    "preference/dpo": _entry(f"{PREFERENCE}.dpo.train", "test/accuracy", "style/preferred", "style/true"),
    "preference/shorter": _entry(f"{PREFERENCE}.shorter.train", "env/all/ac_tokens_per_turn"),
    "preference/rlhf": _entry(
        f"{PREFERENCE}.rlhf.rlhf_pipeline", "judge/win_rate", "rule/win_rate", part="rl"
    ),
    "text_arena": _entry(
        f"{GAMES}.text_arena.train",
        "env/all/legal",
        "test/env/vs_random/loss",
        "test/env/vs_optimal/loss",
    ),
    "guess_number": _entry(f"{GAMES}.guess_number.train", REWARD, TEST_REWARD),
    "twenty_questions": _entry(f"{GAMES}.twenty_questions.train", REWARD, TEST_REWARD),
}
HEAD = """# What the recipes reach

The small variant of every recipe, on the tiny model that comes with the engine, as its command runs it. Figures go from
the first row of `metrics.jsonl` that has them to the last; of several seeds, those of each in turn. The time is that of
the whole command, start of the engine included. Made by `python -m benchmarks.ledger`, which runs them all; the rows
are in [`benchmarks/results/ledger.json`](../benchmarks/results/ledger.json).
"""


def main() -> None:
    arguments = parser(__doc__, ENTRIES, all_by_default=True)
    runs = {name: entry.run for name, entry in ENTRIES.items()}
    measure_all("ledger", runs, arguments.parse_args(), summary, after=write_page)


def summary(name: str, folder: Path) -> Figures:
    entry = ENTRIES[name]
    rows = metrics_of(folder / entry.part)
    found = {metric: series(rows, metric, 3) for metric in entry.metrics}
    if missing := [metric for metric, values in found.items() if not values]:
        raise SystemExit(f"{name} has no {', '.join(missing)} in its metrics")
    return found


def write_page(figures: Figures) -> None:
    PAGE.write_text(page(figures), encoding="utf-8")


def page(figures: Figures) -> str:
    lines = [
        HEAD,
        *_processors(figures),
        "| recipe | figure | first → last | seeds | seconds |",
        "|---" * 5 + "|",
    ]
    missing = [name for name in ENTRIES if name not in figures]
    commands = [f"\nNot run yet: {', '.join(missing)}."] if missing else []
    commands += ["\n## Commands\n", "```"]
    for name, measured in figures.items():
        by_seed: Figures = measured["seeds"]
        seconds = ", ".join(str(result["seconds"]) for result in by_seed.values())
        for place, metric in enumerate(ENTRIES[name].metrics):
            climbs = ", ".join(_climb(result[metric]) for result in by_seed.values())
            first = (name, ", ".join(by_seed), seconds) if place == 0 else ("", "", "")
            lines.append(f"| {first[0]} | `{metric}` | {climbs} | {first[1]} | {first[2]} |")
        commands.append(measured["command"])
    return "\n".join([*lines, *commands, "```", ""])


def _processors(figures: Figures) -> list[str]:
    """Which rows are of which, for their seconds are to be compared only among each other."""
    names: dict[str, list[str]] = {}
    for name, measured in figures.items():
        for cpu in dict.fromkeys(result["cpu"] for result in measured["seeds"].values()):
            names.setdefault(cpu, []).append(name)
    return [f"On {cpu}: {', '.join(rows)}.\n" for cpu, rows in names.items()]


def _climb(values: dict[str, float]) -> str:
    first, *_, last = [*values.values()] * 2 if len(values) == 1 else values.values()
    return f"{first:g} → {last:g}"


if __name__ == "__main__":
    main()
