"""A multi-turn environment: guess a number from hints.

python tutorials/05_multi_turn_env.py
"""

# %% An episode in messages.
# `initial_observation` is the conversation to be answered. `step` is given the answer and says what it was worth,
# whether the episode is over, and otherwise the conversation to answer next. Tokens do not come up here.
import asyncio
import json
import random
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import chz

from tinker_cookbook import model_info
from tinker_cookbook.renderers import Message, Renderer, get_renderer, get_text_content
from tinker_cookbook.rl import train
from tinker_cookbook.rl.message_env import EnvFromMessageEnv, MessageEnv, MessageStepResult
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, RLDataset, RLDatasetBuilder
from tinker_cookbook.tokenizer_utils import get_tokenizer

TOP, MAX_GUESSES = 20, 4


class GuessEnv(MessageEnv):
    def __init__(self, number: int):
        self.number = number
        self.guesses = 0
        self.conversation = [
            Message(role="user", content=f"I am thinking of a number from 1 to {TOP}. Guess it.")
        ]

    async def initial_observation(self) -> list[Message]:
        return self.conversation

    async def step(self, message: Message) -> MessageStepResult:
        self.guesses += 1
        found = re.search(r"\d+", get_text_content(message))
        if found is None:  # no guess at all: over, and worth nothing
            return MessageStepResult(0.0, True, [])
        guess = int(found[0])
        if guess == self.number:
            return MessageStepResult(1.0, True, [], metrics={"guesses": self.guesses})
        if self.guesses == MAX_GUESSES:
            return MessageStepResult(0.0, True, [])
        hint = "Higher." if guess < self.number else "Lower."
        self.conversation = [*self.conversation, message, Message(role="user", content=hint)]
        return MessageStepResult(0.0, False, self.conversation)


# %% Try it by hand.
# An environment is plain Python: play an episode before a model does.
async def play(number: int, guesses: Sequence[int]) -> float:
    env = GuessEnv(number)
    total = 0.0
    for guess in guesses:
        result = await env.step(Message(role="assistant", content=f"Guess: {guess}"))
        total += result.reward
        if result.episode_done:
            return total
    raise AssertionError("the episode should have ended")


assert asyncio.run(play(7, [10, 5, 7])) == 1.0
assert asyncio.run(play(7, [10, 11, 12, 13])) == 0.0
print("played by hand: found in three guesses is worth 1, four bad guesses 0")


# %% Groups of episodes about the same number, and the rest, as in the tutorial before.
@dataclass(frozen=True)
class GuessGroup(EnvGroupBuilder):
    number: int
    renderer: Renderer
    size: int

    async def make_envs(self) -> Sequence[Env]:
        return [EnvFromMessageEnv(self.renderer, GuessEnv(self.number)) for _ in range(self.size)]


class Numbers(RLDataset):
    def __init__(self, batches: list[list[GuessGroup]]):
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        return self.batches[index]


@chz.chz
class NumbersBuilder(RLDatasetBuilder):
    model_name_for_tokenizer: str
    renderer_name: str
    n_batches: int = 5
    batch_size: int = 12
    group_size: int = 8

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        renderer = get_renderer(self.renderer_name, get_tokenizer(self.model_name_for_tokenizer))
        rng = random.Random(0)
        return Numbers(
            [
                [GuessGroup(rng.randint(1, TOP), renderer, self.group_size) for _ in range(self.batch_size)]
                for _ in range(self.n_batches)
            ]
        ), None


# %% The run.
MODEL = "tinker-engine/tiny-chat"
renderer_name = model_info.get_recommended_renderer_name(MODEL)
log_path = Path(tempfile.mkdtemp(prefix="multi-turn-"))
config = train.Config(
    log_path=str(log_path),
    model_name=MODEL,
    recipe_name="multi_turn_env",
    renderer_name=renderer_name,
    dataset_builder=NumbersBuilder(model_name_for_tokenizer=MODEL, renderer_name=renderer_name),
    max_tokens=8,
    learning_rate=3e-3,
    loss_fn="ppo",
    num_substeps=2,
    advantage="group_mean_std",
    eval_every=0,
    save_every=0,
)
asyncio.run(train.main(config))

# %% What happened.
rows = [json.loads(line) for line in (log_path / "metrics.jsonl").read_text().splitlines()]
rewards = [row["env/all/reward/total"] for row in rows]
for row in rows:
    turns, tokens = row["env/all/turns_per_episode"], row["env/all/ob_tokens_per_turn"]
    print(
        f"step {row['step']}  found {row['env/all/reward/total']:4.0%}  turns {turns:.1f}  tokens read {tokens:.0f}"
    )
assert all(row["env/all/turns_per_episode"] > 1.5 for row in rows), "episodes have several turns"
assert sum(rewards[-2:]) > sum(rewards[:2]), "it finds the number more often"
