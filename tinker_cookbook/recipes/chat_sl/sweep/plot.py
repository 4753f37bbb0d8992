"""A page with one plot: loss against learning rate, a line for each of the other settings. Opens from a file."""

import math
from collections.abc import Sequence
from html import escape
from itertools import pairwise

from tinker_cookbook.recipes.chat_sl.sweep.results import Row, axes_of, text_table, value_of

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 190, 40, 56
COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b83280", "#975a16", "#2c7a7b", "#4a5568")

Line = list[tuple[float, float | None, str]]  # x, y (None: no figure), the name of the run


def page(rows: Sequence[Row], metric: str, title: str) -> str:
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title></head>
<body style="font-family: sans-serif; margin: 2em">
<h1 style="font-size: 1.2em">{escape(title)}</h1>
{svg(rows, metric)}
<pre>{escape(text_table(rows, metric))}</pre>
</body></html>
"""


def svg(rows: Sequence[Row], metric: str) -> str:
    x_axis = _x_axis(rows)
    if x_axis is None:
        return "<p>There is nothing to plot: no setting of these runs is a number.</p>"
    lines = _lines(rows, x_axis, metric)
    xs = sorted({x for line in lines.values() for x, _, _ in line})
    ys = [y for line in lines.values() for _, y, _ in line if y is not None]
    if not ys:
        return f"<p>There is nothing to plot: no run has finished with a {escape(metric)}.</p>"
    across = _Scale(xs[0], xs[-1], LEFT, WIDTH - RIGHT)
    up = _Scale(min(ys), max(ys), HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        *_frame(xs, across, up, x_axis, metric),
    ]
    for i, (label, line) in enumerate(lines.items()):
        parts += _draw(line, label, i, across, up)
    return "\n".join([*parts, "</svg>"])


def _x_axis(rows: Sequence[Row]) -> str | None:
    numeric = [axis for axis in axes_of(rows) if all(isinstance(row.get(axis), int | float) for row in rows)]
    return "learning_rate" if "learning_rate" in numeric else next(iter(numeric), None)


def _lines(rows: Sequence[Row], x_axis: str, metric: str) -> dict[str, Line]:
    lines: dict[str, Line] = {}
    others = [axis for axis in axes_of(rows) if axis != x_axis]
    for row in rows:
        label = ", ".join(f"{axis} {row.get(axis)}" for axis in others)
        lines.setdefault(label, []).append((float(row[x_axis]), value_of(row, metric), row["name"]))
    return {label: sorted(line, key=lambda point: point[0]) for label, line in lines.items()}


class _Scale:
    """From values to pixels, by powers of ten where the values span more than one of them and are all positive."""

    def __init__(self, low: float, high: float, start: float, end: float):
        self.is_log = low > 0 and high / low > 10
        self._low, self._high = self._bent(low), self._bent(high)
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        span = self._high - self._low
        share = (self._bent(value) - self._low) / span if span else 0.5
        return round(self._start + share * (self._end - self._start), 1)

    def ticks(self, count: int = 5) -> list[float]:
        values = [self._low + (self._high - self._low) * i / (count - 1) for i in range(count)]
        return sorted({10**value if self.is_log else value for value in values})

    def _bent(self, value: float) -> float:
        return math.log10(value) if self.is_log else value


def _frame(xs: Sequence[float], across: _Scale, up: _Scale, x_axis: str, metric: str) -> list[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for y in up.ticks():
        parts += [
            f'<line x1="{LEFT}" x2="{right}" y1="{up(y)}" y2="{up(y)}" stroke="#e2e8f0"/>',
            f'<text x="{LEFT - 8}" y="{up(y) + 4}" text-anchor="end">{y:.3g}</text>',
        ]
    for x in xs:
        parts.append(f'<text x="{across(x)}" y="{bottom + 20}" text-anchor="middle">{x:g}</text>')
    return [
        *parts,
        f'<line x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}" stroke="#4a5568"/>',
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 12}" text-anchor="middle">{escape(x_axis)}</text>',
        f'<text x="{LEFT}" y="20" font-weight="bold">{escape(metric)}</text>',
    ]


def _draw(line: Line, label: str, index: int, across: _Scale, up: _Scale) -> list[str]:
    """A line through the runs that have a figure; those that have none are crosses at the top."""
    colour = COLOURS[index % len(COLOURS)]
    found = [(across(x), up(y)) for x, y, _ in line if y is not None]
    parts = [
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}" stroke-width="2"/>'
        for (x1, y1), (x2, y2) in pairwise(found)
    ]
    for x, y, name in line:
        if y is None:
            said = f"<title>{escape(name)}: no figure</title>"
            parts.append(
                f'<text x="{across(x)}" y="{TOP - 6}" text-anchor="middle" fill="{colour}">×{said}</text>'
            )
        else:
            said = f"<title>{escape(name)}: {y:.4f}</title>"
            parts.append(f'<circle cx="{across(x)}" cy="{up(y)}" r="4" fill="{colour}">{said}</circle>')
    y = TOP + 20 * index
    return [
        *parts,
        f'<circle cx="{WIDTH - RIGHT + 20}" cy="{y}" r="4" fill="{colour}"/>',
        f'<text x="{WIDTH - RIGHT + 30}" y="{y + 4}">{escape(label)}</text>',
    ]
