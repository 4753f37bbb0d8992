"""The loops of tinker_cookbook as users run them, a step at a time, through HTTP and the SDK: RL or DPO.

An evaluation before every step, which measures nothing, is where the loop waits for its turn. A step is what lies
between two of them: rollouts, gradient, optimizer step, metrics and files, and in RL the new weights for sampling.
"""

import asyncio
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import chz
import tinker

from benchmarks.peers.channel import Channel, Message, Turns
from benchmarks.peers.pairs import builder_of, lora_of
from benchmarks.peers.sdk_worker import about, own_engine
from benchmarks.preference_trl import BETA, HYPERPARAMETERS, first_weights
from tinker_cookbook.completers import StopCondition
from tinker_cookbook.eval.evaluators import SamplingClientEvaluator, TrainingClientEvaluator
from tinker_cookbook.preference import train_dpo
from tinker_cookbook.rl import train as rl_train
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
from tinker_cookbook.tokenizer_utils import get_tokenizer

METRICS = {"loss": "dpo_loss", "reward": "env/all/reward/total"}


def main() -> None:
    channel = Channel()
    setup = channel.receive()
    assert setup is not None
    with tempfile.TemporaryDirectory() as home:
        start = first_weights(own_engine(home), setup["model"], lora_of(setup))
        channel.send(about())
        log = Path(home) / "log"
        common = {
            "log_path": str(log),
            "model_name": setup["model"],
            "recipe_name": "benchmark",
            "load_checkpoint_path": start,
            "lora_rank": setup["rank"],
            "save_every": 0,
            "eval_every": 1,
        }
        turns = LoopTurns(Turns(channel), log)
        {"rl": reinforce, "dpo": prefer}[setup["task"]](setup, turns, common)


class LoopTurns:
    """The end of one step and the beginning of the next."""

    def __init__(self, turns: Turns, log: Path):
        self._turns = turns
        self._metrics = log / "metrics.jsonl"

    async def __call__(self) -> dict[str, float]:
        self._turns.end(**self._figures())
        await asyncio.to_thread(self._turns.begin)
        return {}

    def _figures(self) -> dict[str, float]:
        if not self._metrics.exists():
            return {}
        row = json.loads(self._metrics.read_text().splitlines()[-1])
        return {name: row[metric] for name, metric in METRICS.items() if metric in row}


def reinforce(setup: Message, turns: LoopTurns, common: dict[str, Any]) -> None:
    class Gate(SamplingClientEvaluator):
        async def __call__(self, sampling_client: tinker.SamplingClient) -> dict[str, float]:
            return await turns()

    config = rl_train.Config(
        dataset_builder=EvenTokensBuilder(setup=setup),
        max_tokens=setup["new_tokens"],
        learning_rate=setup["learning_rate"],
        evaluator_builders=[Gate],
        **common,
    )
    asyncio.run(rl_train.main(config))


def prefer(setup: Message, turns: LoopTurns, common: dict[str, Any]) -> None:
    class Gate(TrainingClientEvaluator):
        async def __call__(self, training_client: tinker.TrainingClient) -> dict[str, float]:
            return await turns()

    settings = {**HYPERPARAMETERS, "learning_rate": setup["learning_rate"]}
    builder = builder_of(setup)
    train_dpo.main(
        train_dpo.Config(
            dataset_builder=builder, dpo_beta=BETA, evaluator_builders=[Gate], **settings, **common
        )
    )


class EvenTokens(Env):
    """The reward is the share of even tokens: as little work as there can be, and not the same for all of a group."""

    def __init__(self, prompt: list[int]):
        self._prompt = prompt

    async def initial_observation(self) -> tuple[Observation, StopCondition]:
        return tinker.ModelInput.from_ints(self._prompt), []  # nothing stops a sample before its length

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        reward = sum(token % 2 == 0 for token in action) / len(action)
        return StepResult(reward, True, tinker.ModelInput.empty(), [])


@chz.chz
class Group(EnvGroupBuilder):
    prompt: list[int]
    size: int

    async def make_envs(self) -> Sequence[Env]:
        return [EvenTokens(self.prompt) for _ in range(self.size)]


class Prompts(RLDataset):
    def __init__(self, setup: Message):
        encode = get_tokenizer(setup["model"]).encode
        self._batches = [
            [Group(prompt=encode(text), size=setup["num_samples"]) for text in batch]
            for batch in setup["batches"]
        ]

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        return self._batches[index]

    def __len__(self) -> int:
        return len(self._batches)


@chz.chz
class EvenTokensBuilder(RLDatasetBuilder):
    setup: dict[str, Any]

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        return Prompts(self.setup), None


if __name__ == "__main__":
    main()
