"""The losses of a run as a picture.

python -m benchmarks.curve METRICS.jsonl OUT.svg
"""

import json
import sys
from pathlib import Path

WIDTH, HEIGHT, MARGIN = 640, 320, 48
SERIES = {"train_mean_nll": "#9ab5d1", "test/nll": "#2b6cb0"}


def main(metrics: Path, out: Path) -> None:
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    series = {key: [(row["step"], row[key]) for row in rows if key in row] for key in SERIES}
    last = max(row["step"] for row in rows)
    top = max(value for points in series.values() for _, value in points)

    def place(step: float, value: float) -> tuple[float, float]:
        x = MARGIN + step / last * (WIDTH - 2 * MARGIN)
        return round(x, 1), round(HEIGHT - MARGIN - value / top * (HEIGHT - 2 * MARGIN), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for tick in range(5):
        value = top * tick / 4
        x, y = place(0, value)
        parts.append(f'<line x1="{x}" y1="{y}" x2="{WIDTH - MARGIN}" y2="{y}" stroke="#e2e8f0"/>')
        parts.append(f'<text x="{x - 6}" y="{y + 4}" text-anchor="end">{value:.2f}</text>')
    for step in range(0, last + 1, max(1, last // 6)):
        x, y = place(step, 0)
        parts.append(f'<text x="{x}" y="{y + 18}" text-anchor="middle">{step}</text>')
    for i, (key, points) in enumerate(series.items()):
        line = " ".join(f"{x},{y}" for x, y in (place(*point) for point in points))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{SERIES[key]}" stroke-width="2"/>')
        parts.append(
            f'<text x="{WIDTH - MARGIN - 120}" y="{MARGIN + 16 * i}" fill="{SERIES[key]}">{key}</text>'
        )
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 10}" text-anchor="middle">step</text>')
    out.write_text("\n".join([*parts, "</svg>"]) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
