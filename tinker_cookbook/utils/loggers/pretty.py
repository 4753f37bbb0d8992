"""Metrics as a table in the log, for whoever watches the run."""

import io
import json
import logging
import math
import shutil
import sys
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tinker_cookbook.utils.config_dump import dump_config
from tinker_cookbook.utils.jsonable import to_jsonable
from tinker_cookbook.utils.loggers.base import Logger

logger = logging.getLogger(__name__)

HIDDEN_ENDINGS = (":total", ":count")
"""Of a timer that ran several times, its mean and maximum say enough."""
WIDTH_OF_NO_TERMINAL = 120
_BETWEEN = 2
"""Spaces between one column and the next."""


class PrettyPrintLogger(Logger):
    """Through the `logging` module, so that tables and messages keep their order, in the file as on the console."""

    def __init__(self):
        self._width = shutil.get_terminal_size((WIDTH_OF_NO_TERMINAL, 24)).columns

    def log_hparams(self, config: Any) -> None:
        logger.info("config:\n%s", json.dumps(dump_config(config), indent=2, ensure_ascii=False))

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        shown = {key: metrics[key] for key in sorted(metrics) if not key.endswith(HIDDEN_ENDINGS)}
        texts = "".join(f"\n  {key}  {value}" for key, value in shown.items() if isinstance(value, str))
        table = metrics_table(
            {key: format_value(value) for key, value in shown.items() if not isinstance(value, str)},
            title="Metrics" if step is None else f"Step {step}",
            width=self._width,
            ascii_only=not _takes_unicode(),
        )
        plain, ansi = (_rendered(table, self._width, colour) for colour in (False, True))
        logger.info("\n%s%s", plain, texts, extra={"ansi": f"\n{ansi}{texts}"})

    def log_long_text(self, key: str, text: str) -> None:
        logger.info("%s:\n%s", key, text)


def metrics_table(metrics: dict[str, str], title: str, width: int, ascii_only: bool = False) -> Table:
    """Names with their values, downwards, in as many pairs of columns as fit the width."""
    cells = list(metrics.items())
    longest = [max((len(cell[i]) for cell in cells), default=0) for i in (0, 1)]
    pairs = min(max(1, width // (sum(longest) + 2 * _BETWEEN)), max(1, len(cells)))
    rows = math.ceil(len(cells) / pairs)
    table = Table(
        title=Text(title, style="bold"),
        title_justify="left",
        show_header=False,
        box=box.ASCII if ascii_only else box.HORIZONTALS,
        padding=(0, _BETWEEN // 2),
    )
    for _ in range(pairs):
        table.add_column(style="cyan", overflow="fold")
        table.add_column(justify="right", overflow="fold", min_width=min(longest[1], 12))
    for row in range(rows):
        table.add_row(*(Text(part) for cell in cells[row::rows] for part in cell))
    return table


def format_value(value: Any) -> str:
    """Six decimals, but digits that count for a learning rate of 1e-6."""
    value = to_jsonable(value)
    if not isinstance(value, float):
        return str(value)
    return f"{value:.6f}" if value == 0 or 1e-4 <= abs(value) < 1e12 else f"{value:.4e}"


def _rendered(table: Table, width: int, colour: bool) -> str:
    text = io.StringIO()
    system = "standard" if colour else None
    Console(file=text, width=width, force_terminal=colour, color_system=system, no_color=not colour).print(
        table
    )
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def _takes_unicode() -> bool:
    return (getattr(sys.stderr, "encoding", None) or "utf-8").lower().startswith("utf")
