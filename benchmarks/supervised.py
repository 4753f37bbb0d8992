"""What the loop of supervised fine-tuning costs besides the training itself.

    python -m benchmarks.supervised [PART]...    writes benchmarks/results/supervised.json

idle  SmolLM2-135M: the share of the time between the first and the last step in which the engine does not train, while
      each batch is waited for (submit_ahead=0) and while the next is submitted meanwhile (1).
rows  a file of 100,000 short conversations, read, rendered and tokenised batch by batch: how fast, and how much memory.
"""

import argparse
import asyncio
import json
import logging
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chz
import psutil
import tinker
from tinker_cookbook.supervised.data import FromConversationFileBuilder
from tqdm import tqdm

from benchmarks.limits import RESULTS, machine
from benchmarks.server import counters
from tinker_cookbook.supervised import train
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig, SupervisedDataset
from tinker_engine.model import tiny

SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
STEPS = 12
ROWS = 100_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts: dict[str, Callable[[], dict[str, Any]]] = {"idle": idle, "rows": rows}
    parser.add_argument("parts", nargs="*", choices=[*parts, []], help="default: all")
    chosen = parser.parse_args().parts or list(parts)
    path = RESULTS / "supervised.json"
    figures = json.loads(path.read_text()) if path.exists() else {}
    for name in chosen:
        print(f"{name} …", file=sys.stderr)
        figures[name] = parts[name]()
        print(json.dumps(figures[name], indent=2))
    head = {"command": "python -m benchmarks.supervised", "machine": machine()}
    kept = {name: figures[name] for name in parts if name in figures}
    path.write_text(json.dumps(head | kept, indent=2) + "\n")


def idle() -> dict[str, Any]:
    figures: dict[str, Any] = {"model": SMOLLM2, "steps": STEPS, "batch": 4, "unit": "seconds"}
    with tempfile.TemporaryDirectory() as folder:
        for ahead in (0, 1):
            write_conversations(Path(folder) / "data.jsonl", 4 * STEPS, words=90)
            log = Path(folder) / f"ahead_{ahead}"
            figures[f"submit_ahead_{ahead}"] = asyncio.run(_one_run(Path(folder) / "data.jsonl", log, ahead))
    return figures


async def _one_run(data: Path, log: Path, ahead: int) -> dict[str, Any]:
    marks: list[tuple[float, float]] = []

    @chz.chz
    class Marked(FromConversationFileBuilder):
        """Looks at the engine's count of work when the second batch is read, and at the end."""

        def __call__(self) -> tuple[SupervisedDataset, SupervisedDataset | None]:
            dataset, _ = super().__call__()
            read = dataset.get_batch

            def get_batch(index: int) -> list[tinker.Datum]:
                if index == 1:
                    marks.append(_now())
                return read(index)

            dataset.get_batch = get_batch  # pyright: ignore[reportAttributeAccessIssue]
            return dataset, None

    builder = Marked(common_config=common(SMOLLM2, "smollm2", 4), file_path=str(data))
    config = train.Config(
        log_path=str(log),
        model_name=SMOLLM2,
        recipe_name="benchmark",
        dataset_builder=builder,
        submit_ahead=ahead,
        save_every=0,
        eval_every=0,
    )
    await train.main(config)
    rows = [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]
    spans = [json.loads(line) for line in (log / "timing_spans.jsonl").read_text().splitlines()]
    assert len(rows) == len(spans) == STEPS
    (began, worked), (ended, done) = marks[0], _now()
    saving = _final_save_seconds(log)
    wall = ended - began - saving
    return {
        "wall": round(wall, 2),
        "training": round(done - worked, 2),
        "idle_share": round(1 - (done - worked) / wall, 4),
    }


def _now() -> tuple[float, float]:
    time.sleep(1.2)  # the engine reports its count every second
    return time.perf_counter(), counters(os.environ["TINKER_BASE_URL"])["training_seconds_total"]


def _final_save_seconds(log: Path) -> float:
    """Between the last row and the end: the final checkpoint, which is not part of the loop."""
    checkpoint = (log / "checkpoints.jsonl").stat().st_mtime
    return max(0.0, checkpoint - (log / "metrics.jsonl").stat().st_mtime)


def rows() -> dict[str, Any]:
    logging.disable(logging.INFO)
    process = psutil.Process()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "conversations.jsonl"
        write_conversations(path, ROWS, words=12)
        builder = FromConversationFileBuilder(
            common_config=common(tiny.NAME, "chatml", 128), file_path=str(path)
        )
        builder.renderer.build_generation_prompt([])  # loads the tokenizer
        before = process.memory_info().rss
        started = time.perf_counter()
        dataset, _ = builder()
        checked = time.perf_counter()
        dataset.set_epoch(0)
        memory: list[int] = []
        tokens = 0
        for i in tqdm(range(len(dataset)), unit="batch"):
            tokens += sum(datum.model_input.length for datum in dataset.get_batch(i))
            memory.append(process.memory_info().rss - before)
        seconds = time.perf_counter() - checked
        size = path.stat().st_size
    tenths = [memory[len(memory) * i // 10 - 1] for i in range(1, 11)]
    return {
        "rows": ROWS,
        "file_mb": round(size / 1e6, 1),
        "check_seconds": round(checked - started, 1),
        "render_seconds": round(seconds, 1),
        "tokens": tokens,
        "tokens_per_second": round(tokens / seconds),
        "memory_added_mb_by_tenth": [round(value / 1e6) for value in tenths],
    }


def common(model: str, renderer: str, batch_size: int) -> ChatDatasetBuilderCommonConfig:
    return ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=model, renderer_name=renderer, max_length=512, batch_size=batch_size
    )


def write_conversations(path: Path, count: int, words: int) -> None:
    rng = random.Random(0)
    with path.open("w") as file:
        for i in range(count):
            question = " ".join(rng.choice(("sun", "river", "seven", "blue", "why")) for _ in range(words))
            messages = [
                {"role": "user", "content": f"{i}: {question}?"},
                {"role": "assistant", "content": question},
            ]
            file.write(json.dumps({"messages": messages}) + "\n")


if __name__ == "__main__":
    main()
