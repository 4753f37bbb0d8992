"""How cost grows: time per token of SmolLM2-135M against what a user can make larger, and memory against tokens.

    python -m benchmarks.growth            writes benchmarks/results/growth.json and .png (a quarter of an hour)
    python -m benchmarks.growth --quick    a few small points of each, in build/growth.json and .png

The library alone, in float32. Each point is the median of its rounds; all points are measured once in every round, so
that what else the machine does falls on all of them. A flat line is work that grows as it must.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.limits import RESULTS, machine

import torch  # isort: skip
from tqdm import tqdm

from benchmarks.engine import LORA, MODEL, PROMPT, decode_seconds, training_seconds
from tinker_engine.model.decoder import Decoder
from tinker_engine.model.load import LoadedModel, expected_shapes, load_model
from tinker_engine.sampling.sampler import PREFILL_TOKENS

ROUNDS, STEPS = 3, 12
TOKENS = 2048  # of a training step whose sequences get longer
LENGTH = 125  # of the sequences whose number grows with the tokens, for memory


@dataclass(frozen=True)
class Panel:
    """One question: `measure` gives milliseconds per token at x."""

    title: str
    x: str
    xs: Sequence[int]
    measure: Callable[[int], float]
    y: str = "ms per token"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--memory-of", type=int, metavar="TOKENS", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.memory_of:
        print(json.dumps(memory_of(chosen.memory_of)))
        return
    out = Path("build/growth") if chosen.quick else RESULTS / "growth"
    memory = memory_panel([250, 500] if chosen.quick else [1000, 2000, 5000, 10_000])
    panels = small(all_panels()) if chosen.quick else all_panels()
    measured = [*points_of(panels, 1 if chosen.quick else ROUNDS), memory]
    report = {"command": "python -m benchmarks.growth", "model": MODEL, "machine": machine()}
    out.parent.mkdir(exist_ok=True)
    out.with_suffix(".json").write_text(json.dumps({**report, "panels": measured}, indent=1) + "\n")
    draw(measured, out.with_suffix(".png"))


def small(panels: Sequence[Panel]) -> list[Panel]:
    return [replace(panel, xs=panel.xs[:2]) for panel in panels]


# --- time -------------------------------------------------------------------------------------------------


def all_panels() -> list[Panel]:
    model = load_model(MODEL)
    decoder = Decoder(model.spec, model.weights)

    def decode(rows: int, *, prompt_tokens: int = PROMPT, adapters: int = 1) -> float:
        until_all_decode = rows * prompt_tokens // PREFILL_TOKENS  # steps, in which the first ones go on
        seconds = decode_seconds(
            decoder,
            model.tokenizer,
            rows,
            lora=True,
            adapters=adapters,
            prompt_tokens=prompt_tokens,
            new_tokens=STEPS + until_all_decode,
        )
        return 1000 * statistics.median(seconds) / rows

    def train(sequences: int, length: int, rank: int = LORA.rank) -> float:
        lora = replace(LORA, rank=rank)
        seconds = training_seconds(decoder, sequences, length, lora=lora, repeats=1)
        return 1000 * seconds[0] / (sequences * length)

    return [
        Panel("decode, by batch", "rows", (1, 2, 4, 8, 16, 32, 64), decode),
        Panel(
            "decode of 8 rows, by length so far",
            "prompt tokens",
            (64, 256, 1024, 2048, 4096),
            lambda x: decode(8, prompt_tokens=x),
        ),
        Panel(
            "decode of 32 rows, by adapters among them",
            "adapters",
            (1, 2, 4, 8, 16, 32),
            lambda x: decode(32, adapters=x),
        ),
        Panel(
            "training on sequences of 128, by batch", "sequences", (1, 4, 16, 32, 64), lambda x: train(x, 128)
        ),
        Panel(
            f"training on {TOKENS} tokens, by length of a sequence",
            "tokens of a sequence",
            (32, 128, 512, 1024, 2048),
            lambda x: train(TOKENS // x, x),
        ),
        Panel(
            "training on 8 sequences of 128, by rank",
            "rank",
            (1, 8, 32, 64, 128),
            lambda x: train(8, 128, rank=x),
        ),
        *vocabulary_panels(model),
    ]


def vocabulary_panels(model: LoadedModel) -> list[Panel]:
    """The same shape with random weights and other vocabularies."""
    sizes = (8192, 16_384, 49_152, 131_072)

    def train(vocabulary: int) -> float:
        return 1000 * training_seconds(random_model(model, vocabulary), 8, 128, repeats=1)[0] / (8 * 128)

    def decode(vocabulary: int) -> float:
        decoder = random_model(model, vocabulary)
        seconds = decode_seconds(decoder, model.tokenizer, 32, lora=False, new_tokens=STEPS)
        return 1000 * statistics.median(seconds) / 32

    return [
        Panel("training on 8 sequences of 128, by vocabulary", "vocabulary", sizes, train),
        Panel("decode of 32 rows, by vocabulary", "vocabulary", sizes, decode),
    ]


def random_model(model: LoadedModel, vocabulary: int) -> Decoder:
    spec = replace(model.spec, vocab_size=vocabulary)
    torch.manual_seed(0)
    shapes = expected_shapes(spec).items()
    return Decoder(
        spec,
        {name: torch.randn(shape) * 0.02 if len(shape) > 1 else torch.ones(shape) for name, shape in shapes},
    )


def points_of(panels: Sequence[Panel], rounds: int) -> list[dict[str, Any]]:
    jobs = [(panel, x) for panel in panels for x in panel.xs]
    found: dict[tuple[str, int], list[float]] = {(panel.title, x): [] for panel, x in jobs}
    for panel, x in tqdm(jobs * rounds, unit="point"):
        found[panel.title, x].append(panel.measure(x))
    return [
        {
            "title": panel.title,
            "x": panel.x,
            "y": panel.y,
            "points": [_point(x, found[panel.title, x]) for x in panel.xs],
        }
        for panel in panels
    ]


def _point(x: int, values: list[float]) -> dict[str, Any]:
    spread = [round(min(values), 4), round(max(values), 4)]
    return {"x": x, "y": round(statistics.median(values), 4), "least_and_most": spread}


# --- memory -----------------------------------------------------------------------------------------------


def memory_panel(tokens: Sequence[int]) -> dict[str, Any]:
    """Each in a process of its own: a peak is never taken back."""
    found = [_in_a_process(x) for x in tokens]
    points = [
        {"x": x, "y": one["peak_mb"], "loaded_mb": one["loaded_mb"]}
        for x, one in zip(tokens, found, strict=True)
    ]
    title = f"peak memory of a training step on sequences of {LENGTH}"
    ratio = round(points[-1]["y"] / points[0]["y"], 3)
    return {"title": title, "x": "tokens", "y": "MB", "last_to_first": ratio, "points": points}


def _in_a_process(tokens: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.growth", "--memory-of", str(tokens)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def memory_of(tokens: int) -> dict[str, float]:
    model = load_model(MODEL)
    decoder = Decoder(model.spec, model.weights)
    loaded = _peak_mb()
    training_seconds(decoder, tokens // LENGTH, LENGTH, repeats=1)
    return {"loaded_mb": loaded, "peak_mb": _peak_mb()}


def _peak_mb() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


# --- the picture ------------------------------------------------------------------------------------------


def draw(panels: Sequence[dict[str, Any]], path: Path) -> None:
    """Logarithmic to the right; from zero upwards, so that flat looks flat."""
    from matplotlib.figure import Figure

    columns = 3
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(4.4 * columns, 0.5 + 3.1 * lines), layout="constrained")
    figure.suptitle(f"How cost grows: {MODEL}, float32", fontsize=13, fontweight="bold")
    for place, panel in enumerate(panels):
        axes = figure.add_subplot(lines, columns, place + 1)
        xs, ys = ([point[axis] for point in panel["points"]] for axis in ("x", "y"))
        axes.plot(xs, ys, color="#0072B2", marker="o", markersize=4)
        axes.set_xscale("log", base=2)
        axes.set_xticks(xs, [f"{x:,}" for x in xs], fontsize=8)
        axes.set_xticks([], minor=True)
        axes.set_ylim(bottom=0)
        axes.set_title(panel["title"], fontsize=10, loc="left")
        axes.set_xlabel(panel["x"])
        axes.set_ylabel(panel["y"])
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, format="png", dpi=130)


if __name__ == "__main__":
    main()
