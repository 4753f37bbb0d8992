"""A run of `train_cli` to be killed: `python -m tests.tinker_cookbook.rl.exact_run MOMENT STEP ARGUMENT...`.

Says "here" when it comes to that moment of that step, and waits for a line.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

from tinker_cookbook.rl import train, train_cli
from tinker_cookbook.rl.batch import Batch
from tinker_cookbook.rl.task_env import TaskEnv
from tinker_cookbook.training_run import TrainingRun

Moment = Literal["sampling", "update"]
"""`sampling`: the first answers of the step have come, others are under way. `update`: it is with the server."""


@contextmanager
def noting_samples() -> Iterator[None]:
    """Summaries have no tokens: those of each step are written into a file of their own."""
    write_others = train.write_step_files

    def write(config: train.Config, run: TrainingRun, step: int, batch: Batch, tokenizer: Any) -> None:
        write_others(config, run, step, batch, tokenizer)
        sampled = [
            (turn.ac.tokens, turn.ac.logprobs)
            for rolled in batch.whole_groups
            for trajectory in rolled.group.trajectories_G
            for turn in trajectory.transitions
        ]
        (Path(config.log_path) / f"sampled_{step}.json").write_text(json.dumps(sampled))

    with patch.object(train, "write_step_files", write):
        yield


@contextmanager
def doing(action: Callable[[], object], moment: Moment, step: int) -> Iterator[None]:
    """Once, at a moment of a step."""
    submitted, roll_out, answer = TrainingRun.submitted, train.run_group_rollout, TaskEnv.step
    batch = ""  # that is rolled out; groups of two are never under way here
    actions = iter([action])

    def note_update(run: TrainingRun, of_step: int, *args: Any, **kwargs: Any) -> None:
        submitted(run, of_step, *args, **kwargs)
        if (moment, of_step) == ("update", step):
            action()

    async def note_batch(request: Any) -> Any:
        nonlocal batch
        batch = request.name.split(",")[0]
        return await roll_out(request)

    async def note_answer(env: TaskEnv, *args: Any, **kwargs: Any) -> Any:
        if (moment, batch) == ("sampling", f"batch {step}"):
            for act in actions:
                act()
        return await answer(env, *args, **kwargs)

    with (
        patch.object(TrainingRun, "submitted", note_update),
        patch.object(train, "run_group_rollout", note_batch),
        patch.object(TaskEnv, "step", note_answer),
    ):
        yield


def pause() -> None:
    print("here", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    _, where, number, *arguments = sys.argv
    with noting_samples(), doing(pause, where, int(number)):  # pyright: ignore[reportArgumentType]
        sys.exit(train_cli.main(arguments))
