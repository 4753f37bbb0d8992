"""Mains that a sweep can run in processes of their own: they learn nothing and say how it went."""

import json
import os
import signal
from pathlib import Path

import chz


@chz.chz
class FakeConfig:
    log_path: str | None = None
    learning_rate: float = 1e-4
    lora_rank: int = 32
    batch_size: int = 8
    max_steps: int | None = None
    behavior_if_log_dir_exists: str = "ask"


def write_metrics(config: FakeConfig, **metrics: float) -> None:
    folder = Path(config.log_path or "")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 0, "train_mean_nll": 9.0}) + "\n")
        file.write(json.dumps({"step": 1, **metrics}) + "\n")


def loss(config: FakeConfig) -> float:
    """Lowest at 3e-4; a higher rank helps."""
    return abs(config.learning_rate - 3e-4) * 1e3 + 1 / config.lora_rank


def succeed(config: FakeConfig) -> None:
    print(f"learning at {config.learning_rate}")
    write_metrics(config, train_mean_nll=loss(config))


def fail_or_die(config: FakeConfig) -> None:
    """Rank 1 raises, rank 2 is killed, rank 3 exits."""
    if config.lora_rank == 1:
        raise ValueError("a rank of one")
    if config.lora_rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if config.lora_rank == 3:
        raise SystemExit("a rank of three")
    succeed(config)
