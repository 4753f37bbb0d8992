"""Runs of the RL trainer against the fake service: groups that are known by their place in the data."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import chz
import tinker

from tinker_cookbook.completers import StopCondition
from tinker_cookbook.rl import train
from tinker_cookbook.rl.types import (
    Action,
    ActionExtra,
    Env,
    EnvGroupBuilder,
    Observation,
    RLDataset,
    RLDatasetBuilder,
    StepResult,
)

MODEL = "fake/model"


@dataclass
class Answer(Env):
    """One turn, and a reward that is known beforehand. The prompt says which group it is of."""

    prompt: list[int]
    reward: Any
    before: Callable[[], Awaitable[None]] | None = None
    metrics: dict[str, float] = field(default_factory=dict)

    async def initial_observation(self) -> tuple[Observation, StopCondition]:
        return tinker.ModelInput.from_ints(self.prompt), [99]

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        if self.before is not None:
            await self.before()
        return StepResult(self.reward, True, tinker.ModelInput.empty(), [99], dict(self.metrics))


@dataclass
class Problem(EnvGroupBuilder):
    rewards: Sequence[Any] = (0.0, 1.0)
    tags: list[str] = field(default_factory=list)
    before: Callable[[], Awaitable[None]] | None = None  # awaited by each env before it answers
    metrics: dict[str, float] = field(default_factory=dict)
    prompt: list[int] | None = None
    place: tuple[int, int] = (0, 0)  # given by the data set
    cleanups: int = 0

    async def make_envs(self) -> Sequence[Env]:
        prompt = [*self.place, 5] if self.prompt is None else self.prompt
        return [Answer(prompt, reward, self.before, self.metrics) for reward in self.rewards]

    def logging_tags(self) -> list[str]:
        return self.tags

    async def cleanup(self) -> None:
        self.cleanups += 1


class Problems(RLDataset):
    def __init__(self, *batches: Sequence[Problem]):
        self.batches = batches
        for batch, problems in enumerate(batches):
            for index, problem in enumerate(problems):
                problem.place = (batch, index)

    def get_batch(self, index: int) -> Any:
        return self.batches[index]

    def __len__(self) -> int:
        return len(self.batches)


def problems(*sizes: int, **fields: Any) -> Problems:
    return Problems(*([Problem(**fields) for _ in range(size)] for size in sizes))


@chz.chz
class Given(RLDatasetBuilder):
    train: Any
    test: Any = None

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        return self.train, self.test


def config(folder: Path, dataset: RLDataset, test: RLDataset | None = None, **changes: Any) -> train.Config:
    fields: dict[str, Any] = {"max_tokens": 4, "learning_rate": 1e-3, "save_every": 2, "eval_every": 0}
    return train.Config(
        log_path=str(folder / "run"),
        model_name=MODEL,
        recipe_name="test",
        dataset_builder=Given(train=dataset, test=test),
        **fields | changes,
    )


MODES: dict[str, dict[str, Any]] = {
    "sync": {},
    "streaming": {
        "stream_minibatch_config": train.StreamMinibatchConfig(groups_per_batch=2, num_minibatches=2)
    },
    "async": {"async_config": train.AsyncConfig(max_steps_off_policy=1, groups_per_batch=2)},
    "async streaming": {
        "async_config": train.AsyncConfig(max_steps_off_policy=1, groups_per_batch=2),
        "stream_minibatch_config": train.StreamMinibatchConfig(groups_per_batch=2, num_minibatches=2),
    },
    "async, as it comes": {
        "async_config": train.AsyncConfig(max_steps_off_policy=0, groups_per_batch=2, dynamic_sampling=False)
    },
}
"""For batches of two groups."""


def run(config: train.Config, **more: Any) -> None:
    """No run of a test takes long: one that hangs is a mistake."""

    async def main() -> None:
        async with asyncio.timeout(30):
            await train.main(config, **more)

    asyncio.run(main())


def rows(config: train.Config, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    path = Path(config.log_path) / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def records(config: train.Config) -> list[dict[str, Any]]:
    return rows(config, "checkpoints.jsonl")


def said(config: train.Config) -> str:
    return (Path(config.log_path) / "logs.log").read_text()


def places(data: Sequence[tinker.Datum]) -> str:
    """The groups that data is of, which is how the fake service names updates: "0.0 0.1"."""
    return " ".join(sorted({"{}.{}".format(*datum.model_input.to_ints()[:2]) for datum in data}))


def groups(updates: Sequence[str]) -> list[str]:
    """All groups that were trained on, as often as they were."""
    return sorted(place for update in updates for place in update.replace("+", "").split())


def every_place(dataset: Problems) -> list[str]:
    return [f"{batch}.{index}" for batch, some in enumerate(dataset.batches) for index, _ in enumerate(some)]
