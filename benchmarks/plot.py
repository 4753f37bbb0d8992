"""Draw the picture of the README from the committed figures.

python -m benchmarks.plot          writes benchmarks/results/engine.svg
"""

import json
from html import escape

from benchmarks.limits import RESULTS

WIDTH, LEFT, BAR, GAP, TOP = 760, 330, 20, 10, 56


def main() -> None:
    report = json.loads((RESULTS / "engine.json").read_text())
    figures = report["figures"]
    scale = WIDTH - LEFT - 110
    height = TOP + len(figures) * (BAR + GAP) + 30
    machine = report["machine"]
    title = f"{report['model']} on {machine['cores']} cores of {machine['cpu']}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="22" font-weight="bold">{escape(title)}</text>',
        '<text x="16" y="42" fill="#555">Bars: share of what the machine could do at best (its measured matrix and '
        "memory rates)</text>",
    ]
    for i, (name, figure) in enumerate(figures.items()):
        y = TOP + i * (BAR + GAP)
        share = min(1.0, figure["fraction_of_limit"])
        colour = "#2b6cb0" if name.startswith("training") else "#2f855a"
        label = f"{figure['tokens_per_second']:.0f} tokens/s · {figure['fraction_of_limit']:.0%}"
        parts += [
            f'<text x="{LEFT - 10}" y="{y + 15}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{LEFT}" y="{y}" width="{scale}" height="{BAR}" fill="#edf2f7"/>',
            f'<rect x="{LEFT}" y="{y}" width="{scale * share:.0f}" height="{BAR}" fill="{colour}"/>',
            f'<text x="{LEFT + scale * share + 6:.0f}" y="{y + 15}">{label}</text>',
        ]
    (RESULTS / "engine.svg").write_text("\n".join([*parts, "</svg>"]) + "\n")
    print("written to engine.svg")


if __name__ == "__main__":
    main()
