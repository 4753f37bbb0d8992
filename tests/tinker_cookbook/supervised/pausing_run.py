"""A training to be killed: `python -m tests.tinker_cookbook.supervised.pausing_run LOG_PATH STEP`.

Says "here" before it reads the batch of that step, and waits for a line.
"""

import asyncio
import sys
from typing import Any

import tinker

from tests.tinker_cookbook.supervised.numbers import TINY, Sums, sums
from tinker_cookbook.supervised import train

STEPS = 16


def config(log_path: str) -> train.Config:
    return train.Config(
        log_path=log_path,
        model_name=TINY,
        recipe_name="test",
        dataset_builder=sums(batches=STEPS // 2),
        num_epochs=2,
        learning_rate=1e-2,
        lora_rank=4,
        save_every=3,
        submit_ahead=2,
    )


def pause_at(step: int) -> None:
    read: Any = Sums.get_batch
    count = iter(range(1000))

    def get_batch(self: Sums, index: int) -> list[tinker.Datum]:
        if next(count) == step:
            print("here", flush=True)
            sys.stdin.readline()
        return read(self, index)

    Sums.get_batch = get_batch


if __name__ == "__main__":
    pause_at(int(sys.argv[2]))
    asyncio.run(train.main(config(sys.argv[1])))
