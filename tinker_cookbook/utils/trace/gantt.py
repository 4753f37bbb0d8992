"""A chart of the spans of an iteration: one page of HTML and SVG, with nothing from the network."""

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tinker_cookbook.utils.atomic_file import write_text_atomically
from tinker_cookbook.utils.logtree.node import escape
from tinker_cookbook.utils.logtree.page import document, head
from tinker_cookbook.utils.trace.window import IterationWindow, SpanRecord

_LANE, _THIN_LANE = 18, 7  # pixels; names with many lanes get thin ones
_MANY_LANES = 4
_TICKS = 8

_CSS = """\
body { max-width: 96rem; }
.gantt { background: var(--lt-card); border: 1px solid var(--lt-line); border-radius: 8px; padding: .3rem .8rem .6rem; }
.gantt-row { display: grid; grid-template-columns: 15rem 1fr; column-gap: .8rem; border-top: 1px solid var(--lt-line); }
.gantt-row:hover { background: var(--lt-soft); }
.gantt-axis { border-top: 0; color: var(--lt-muted); position: sticky; top: 0; background: var(--lt-card); z-index: 2; }
.gantt-label { padding: .3rem 0; font-size: .85rem; line-height: 1.35; }
.gantt-label small { color: var(--lt-muted); display: block; }
.gantt svg { display: block; width: 100%; overflow: visible; }
.gantt line { stroke: var(--lt-line); stroke-dasharray: 2 3; }
.gantt text { fill: var(--lt-muted); font: 11px var(--lt-font); }
.gantt rect { stroke-width: 1; rx: 1px; }
.gantt rect:hover { stroke: var(--lt-fg); }
@media (max-width: 40rem) { .gantt-row { grid-template-columns: 1fr; } }
"""


def save_gantt_chart_html(window: IterationWindow, step: int, path: Path | str) -> None:
    """A row per name, in it a lane per span that ran at the same time; pointing at a span tells its times."""
    title = f"Step {step}: where the time went"
    total = "" if window.total_time is None else f"{_seconds(window.total_time)} in all"
    body = (
        f'<body><header class="lt-top"><h1>{title}</h1><span class="lt-when">{total}</span></header>\n'
        f"{''.join(_chart(list(window.spans)))}</body>"
    )
    write_text_atomically(path, document(head(title, None, [_CSS], None), body))


@dataclass(frozen=True)
class _Scale:
    start: float
    length: float

    def percent(self, seconds: float) -> str:
        return f"{100 * seconds / self.length:.4f}%"

    def ticks(self) -> list[float]:
        """Round numbers of seconds, at most `_TICKS` of them."""
        rough = self.length / _TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
        return [index * step for index in range(math.floor(self.length / step * 1.000001) + 1)]


def _chart(spans: list[SpanRecord]) -> Iterator[str]:
    if not spans:
        yield '<p class="lt-empty">No spans were recorded.</p>'
        return
    spans.sort(key=lambda span: (span.wall_start, -span.wall_end))
    start = spans[0].wall_start
    scale = _Scale(start, max(max(span.wall_end for span in spans) - start, 1e-6))
    by_name: dict[str, list[SpanRecord]] = {}
    for span in spans:
        by_name.setdefault(span.name, []).append(span)
    yield '<div class="gantt">\n'
    yield _row("", _axis(scale), "gantt-row gantt-axis")
    for index, (name, group) in enumerate(by_name.items()):
        yield _row(_label(name, group), _bars(group, scale, f"hsl({210 + 137.5 * index:g} 55% 52%)"))
    yield "</div>\n"


def _row(label: str, svg: str, css_class: str = "gantt-row") -> str:
    return f'<div class="{css_class}"><div class="gantt-label">{label}</div>{svg}</div>\n'


def _label(name: str, group: list[SpanRecord]) -> str:
    total = sum(span.duration for span in group)
    if len(group) == 1:
        return f"{escape(name)}<small>{_seconds(total)}</small>"
    longest = max(span.duration for span in group)
    numbers = f"{len(group)} ×, mean {_seconds(total / len(group))}, max {_seconds(longest)}"
    return f"{escape(name)}<small>{numbers}</small>"


def _axis(scale: _Scale) -> str:
    def anchor(seconds: float) -> str:
        if seconds == 0:
            return "start"
        return "end" if seconds > 0.97 * scale.length else "middle"

    texts = "".join(
        f'<text x="{scale.percent(tick)}" y="16" text-anchor="{anchor(tick)}">{tick:g} s</text>'
        for tick in scale.ticks()
    )
    return f'<svg height="22">{texts}</svg>'


def _bars(group: list[SpanRecord], scale: _Scale, colour: str) -> str:
    lanes = lanes_of(group)
    count = max(lanes) + 1
    lane_height = _LANE if count < _MANY_LANES else _THIN_LANE
    height = count * lane_height + 8
    lines = "".join(
        f'<line x1="{x}" x2="{x}" y1="0" y2="{height}"/>' for x in map(scale.percent, scale.ticks())
    )
    rects = "".join(
        f'<rect x="{scale.percent(span.wall_start - scale.start)}" y="{4 + lane * lane_height}" '
        f'width="{scale.percent(span.wall_end - span.wall_start)}" height="{lane_height - 2}">'
        f"<title>{escape(_tip(span, scale))}</title></rect>"
        for span, lane in zip(group, lanes, strict=True)
    )
    # The line around a bar is of its colour, so that the shortest ones can be seen.
    return f'<svg height="{height}">{lines}<g fill="{colour}" stroke="{colour}">{rects}</g></svg>'


def lanes_of(spans: list[SpanRecord]) -> list[int]:
    """For spans by their start: the lowest lane that is free by then."""
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    numbers = itertools.count()
    lanes: list[int] = []
    for span in spans:
        while busy and busy[0][0] <= span.wall_start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else next(numbers)
        heapq.heappush(busy, (span.wall_end, lane))
        lanes.append(lane)
    return lanes


def _tip(span: SpanRecord, scale: _Scale) -> str:
    begin, end = span.wall_start - scale.start, span.wall_end - scale.start
    return f"{span.name}\n{_seconds(span.duration)}\nfrom {_seconds(begin)} to {_seconds(end)}"


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value < 100 else f"{value:.0f} s"
