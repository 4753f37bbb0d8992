"""What models learn of games on this machine, and how long it takes, through the commands that users have.

python -m benchmarks.games NAME... [--seeds 0 1 2]     adds to benchmarks/results/games.json, and a plot each as PNG
"""

from pathlib import Path

from benchmarks.limits import RESULTS
from benchmarks.recipe_runs import Figures, Run, measure_all, metrics_of, parser, series
from tinker_cookbook.utils.curves import save_comparison_png

GAMES = "tinker_cookbook.recipes.multiplayer_rl"

SMOLLM2 = (
    "model_name=HuggingFaceTB/SmolLM2-135M-Instruct",
    "groups_per_batch=16",
    "n_batches=18",
    "learning_rate=1e-3",
    "max_tokens=24",
    "test_games=40",
    "eval_every=18",
)
RUNS = {
    "tictactoe": Run(f"{GAMES}.text_arena.train", ("save_every=0",)),
    "guess_number": Run(f"{GAMES}.guess_number.train", ("save_every=0",)),
    "smollm2_tictactoe": Run(f"{GAMES}.text_arena.train", ("save_every=0", *SMOLLM2)),
}
SEATS = ("win", "draw", "loss", "legal")
TICTACTOE = [
    "env/all/legal",
    *(f"test/env/vs_{other}/{figure}" for other in ("random", "optimal") for figure in SEATS),
]
METRICS = {
    "tictactoe": TICTACTOE,
    "smollm2_tictactoe": TICTACTOE,
    "guess_number": ["env/all/win", "env/all/legal", "test/env/all/reward/total", "test/env/all/win"],
}
DRAWN_OF_TICTACTOE = [
    "env/all/legal",
    "test/env/vs_random/win",
    "test/env/vs_random/loss",
    "test/env/vs_optimal/loss",
]
DRAWN = {
    "tictactoe": DRAWN_OF_TICTACTOE,
    "smollm2_tictactoe": DRAWN_OF_TICTACTOE,
    "guess_number": ["env/all/win", "test/env/all/reward/total"],
}


def main() -> None:
    measure_all("games", RUNS, parser(__doc__, RUNS).parse_args(), summary, after=draw)


def summary(name: str, folder: Path) -> Figures:
    rows = metrics_of(folder)
    return {"steps": sum("env/all/legal" in row for row in rows)} | {
        metric: series(rows, metric) for metric in METRICS[name]
    }


def draw(figures: Figures) -> None:
    for name, measured in figures.items():
        curves = {
            f"seed {seed}": [
                {"step": step, metric: value}
                for metric in DRAWN[name]
                for step, value in result[metric].items()
            ]
            for seed, result in measured["seeds"].items()
        }
        save_comparison_png(curves, RESULTS / f"games_{name}.png", keys=DRAWN[name], title=name)


if __name__ == "__main__":
    main()
