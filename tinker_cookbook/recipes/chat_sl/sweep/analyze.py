"""A table and a plot of a sweep, also while it runs.

python -m tinker_cookbook.recipes.chat_sl.sweep.analyze sweep_dir=... [metric=test/nll]
"""

import sys
from pathlib import Path

import chz

from tinker_cookbook.command_line import run_command
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.chat_sl.sweep import plot
from tinker_cookbook.recipes.chat_sl.sweep.results import (
    choose_metric,
    collect_rows,
    csv_text,
    recommendations_text,
    text_table,
)
from tinker_cookbook.utils.atomic_file import write_text_atomically

RESULTS, PLOT, RECOMMENDATIONS = "results.csv", "loss_vs_lr.html", "recommendations.json"


@chz.chz
class Config:
    sweep_dir: str = chz.field(doc="Folder of the sweep")
    metric: str | None = chz.field(
        default=None, doc="What to compare by; None: test/nll, else train_mean_nll"
    )


def analyze(sweep_dir: str, metric: str | None = None) -> str:
    """Writes results.csv, recommendations.json and loss_vs_lr.html beside the runs; returns the table as text."""
    folder = Path(sweep_dir).expanduser()
    rows = collect_rows(folder)
    if not rows:
        raise ConfigurationError(f"{folder} has no runs of a sweep in it")
    metric = choose_metric(rows, metric)
    write_text_atomically(folder / RESULTS, csv_text(rows))
    write_text_atomically(folder / RECOMMENDATIONS, recommendations_text(rows, metric))
    write_text_atomically(
        folder / PLOT, plot.page(rows, metric, f"{folder.name}: {metric} of {len(rows)} runs")
    )
    return text_table(rows, metric)


def main(config: Config) -> None:
    print(analyze(config.sweep_dir, config.metric))
    folder = Path(config.sweep_dir).expanduser().absolute()
    print(f"\n{folder / RESULTS}\n{folder / RECOMMENDATIONS}\n{(folder / PLOT).as_uri()}")


if __name__ == "__main__":
    sys.exit(run_command(lambda: main(chz.entrypoint(Config))))
