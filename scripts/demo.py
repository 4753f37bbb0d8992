"""Teach a real model arithmetic by reinforcement learning, and show what changed. What `make demo` runs.

    python -m scripts.demo                  SmolLM2-135M-Instruct, three minutes on two cores; pulled the first time
    python -m scripts.demo --model tiny     the model that comes with the engine, under a minute, no download

It is `tinker_cookbook.rl.train_cli` with some settings, and a table at the end. Ctrl-C and the same command go on.
"""

import argparse
import asyncio
import json
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tinker

from tinker_cookbook.checkpoint_utils import get_last_checkpoint
from tinker_cookbook.cli_utils import check_log_dir
from tinker_cookbook.command_line import run_command
from tinker_cookbook.rl import train
from tinker_cookbook.rl.train_cli import CLIConfig, build_config
from tinker_cookbook.rl.types import EnvGroupBuilder
from tinker_cookbook.service import connect
from tinker_cookbook.tokenizer_utils import get_tokenizer
from tinker_cookbook.utils.progress import duration
from tinker_engine.errors import DownloadError
from tinker_engine.model import tiny
from tinker_engine.model.pull import pull

SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
REWARD = "env/all/reward/total"
HELD_OUT = "test/env/all/correct"
SHOWN = 6  # problems of the table
WIDTH = 40  # of a column


@dataclass(frozen=True)
class Demo:
    model: str
    task: str
    settings: dict[str, Any]

    @property
    def folder(self) -> Path:
        return Path("runs") / f"demo-{self.model.split('/')[-1]}"


DEMOS = {
    "smollm2": Demo(
        SMOLLM2,
        "sums of numbers of one digit",
        {
            "env": "addition",
            "env_options": ("largest=9", "include_fewshot=False", "system_prompt=Answer with an equation."),
            "batch_size": 24,
            "group_size": 4,
            "learning_rate": 1e-3,
            "lr_schedule": "cosine",
            "max_steps": 10,
            "max_tokens": 12,
            "test_size": 60,
        },
    ),
    "tiny": Demo(
        tiny.NAME,
        "sums of numbers up to 30",
        {"learning_rate": 3e-3, "max_steps": 12, "test_size": 100},
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=DEMOS, default="smollm2")
    return run_command(lambda: show(available(DEMOS[parser.parse_args(argv).model])))


def available(demo: Demo) -> Demo:
    """The tiny model instead, if this one cannot be had."""
    try:
        pull(demo.model)
    except DownloadError as error:
        print(f"{demo.model} cannot be pulled here: {error}\nGoing on with the tiny model.", file=sys.stderr)
        return DEMOS["tiny"]
    return demo


def show(demo: Demo) -> None:
    for noisy in (
        "httpx",
        "tinker",
        "matplotlib",
        "tinker_cookbook.utils.loggers.pretty",
        "tinker_cookbook.rl.report",
    ):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    check_log_dir(str(demo.folder), "resume")
    print(f"{demo.model} learns {demo.task} from rewards alone. Everything is written to {demo.folder}.")
    started = time.perf_counter()
    config = build_config(
        CLIConfig(
            model_name=demo.model,
            log_path=str(demo.folder),
            eval_every=demo.settings["max_steps"],
            eval_temperature=0.0,
            save_every=1,
            **demo.settings,
        )
    )
    asyncio.run(train.main(config))
    seconds = time.perf_counter() - started
    print(f"\n{asyncio.run(table(config))}\n\n{figures(demo.folder)}\n\n{files(demo.folder)}")
    print(f"This took {duration(seconds)}. The same command starts anew once that folder is gone.")


async def table(config: train.Config) -> str:
    """Held-out problems, and what the model says to each before and after."""
    service = connect()
    checkpoint = get_last_checkpoint(config.log_path, required_key="sampler_path")
    assert checkpoint is not None, "a run that ended has saved its weights"
    before, after = (
        service.create_sampling_client(base_model=config.model_name),
        service.create_sampling_client(model_path=checkpoint.sampler_path),
    )
    _, held_out = await config.dataset_builder()
    assert held_out is not None, "the environments of the demo hold problems out"
    groups = [group for index in range(len(held_out)) for group in held_out.get_batch(index)][:SHOWN]
    lines = [f"{'before':{WIDTH}} │ after", f"{'─' * WIDTH}─┼─{'─' * WIDTH}"]
    for seed, group in enumerate(groups):
        (question, *said), (_, *now) = [
            await ask(sampler, group, config, seed) for sampler in (before, after)
        ]
        lines += [f"{question:{WIDTH}} │", f"  {' '.join(said):{WIDTH - 2}} │   {' '.join(now)}"]
    return "\n".join(lines)


async def ask(
    sampler: tinker.SamplingClient, group: EnvGroupBuilder, config: train.Config, seed: int
) -> tuple[str, str, str]:
    """The question, a sampled answer, and a mark that says whether it is right."""
    (env,) = await group.make_envs()
    first = await env.initial_observation()
    assert isinstance(first, tuple), "a short question fits into any context"
    prompt, stop = first
    params = tinker.SamplingParams(max_tokens=config.max_tokens, temperature=1.0, seed=seed, stop=stop)
    (sequence,) = (await sampler.sample_async(prompt, 1, params)).sequences
    result = await env.step(list(sequence.tokens))
    tokenizer = get_tokenizer(config.model_name)
    asked = str(tokenizer.decode(prompt.to_ints())).rpartition("user\n")[2].partition("<|im_end|>")[0]
    said = str(tokenizer.decode(sequence.tokens)).partition("<|im_end|>")[0]
    return shortened(asked), shortened(said), "✓" if result.metrics["correct"] else "✗"


def shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= WIDTH - 4 else line[: WIDTH - 5] + "…"


def figures(folder: Path) -> str:
    """The first and the last of each curve; of a step that is there twice, the last row counts."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows: dict[int, dict[str, Any]] = {}
    for row in map(json.loads, lines):
        rows[row["step"]] = rows.get(row["step"], {}) | row
    shown = {"reward of sampled answers": REWARD, "held-out problems, likeliest answer": HELD_OUT}
    curves = {
        label: [rows[step][key] for step in sorted(rows) if key in rows[step]] for label, key in shown.items()
    }
    return "\n".join(f"{label:36} {curve[0]:5.0%} → {curve[-1]:4.0%}" for label, curve in curves.items())


def files(folder: Path) -> str:
    pages = sorted(folder.glob("iteration_*/train.html"))
    return f"The curve: {folder / 'reward.png'}\nWhat it said, and what was made of it: {pages[-1]}"


if __name__ == "__main__":
    sys.exit(main())
