"""Tongue twisters: words about a thing that begin as the thing does ("small sad snow").

python -m tinker_cookbook.rl.train_cli env=tinker_cookbook.recipes.custom_env.env:MyDatasetBuilder
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import chz

from tinker_cookbook.renderers import Message, Renderer, get_renderer
from tinker_cookbook.renderers.messages import get_text_content
from tinker_cookbook.rl.message_env import EnvFromMessageEnv, MessageEnv, MessageStepResult
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, RLDataset, RLDatasetBuilder
from tinker_cookbook.tasks.formats import ADJECTIVES
from tinker_cookbook.tokenizer_utils import get_tokenizer

TRAIN = "sea sky sun soup stone summer boat bridge cat dog hill house winter wind".split()
TEST = "snow song horse bread".split()
WORDS = 3


def alliteration(answer: str, topic: str) -> float:
    """The share of words that begin with the topic's letter. Only words that exist count, and each once."""
    words = answer.lower().removesuffix(".").split()
    alike = {word for word in words if word[0] == topic[0] and word in (topic, *ADJECTIVES)}
    return len(alike) / max(len(words), WORDS) if topic in alike else 0.0


class TongueTwister(MessageEnv):  # 1. an episode: what the model reads, and what its answer is worth
    def __init__(self, topic: str):
        self.topic = topic

    async def initial_observation(self) -> list[Message]:
        return [Message(role="user", content=f"Describe the {self.topic} in exactly {WORDS} words.")]

    async def step(self, message: Message) -> MessageStepResult:
        reward = alliteration(get_text_content(message), self.topic)
        return MessageStepResult(reward, True, next_messages=[], metrics={"perfect": float(reward == 1)})


@dataclass(frozen=True)
class TopicGroup(EnvGroupBuilder):  # 2. a group: tries at the same thing, so that the better ones show
    topic: str
    renderer: Renderer
    size: int

    async def make_envs(self) -> Sequence[Env]:
        return [EnvFromMessageEnv(self.renderer, TongueTwister(self.topic)) for _ in range(self.size)]


@dataclass(frozen=True)
class Topics(RLDataset):  # 3. batches of groups by index, always the same ones
    batches: list[list[TopicGroup]]

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        return self.batches[index]

    def __len__(self) -> int:
        return len(self.batches)


@chz.chz
class MyDatasetBuilder(RLDatasetBuilder):  # 4. a config; fields of these names are filled in by train_cli
    model_name_for_tokenizer: str
    renderer_name: str
    batch_size: int = 8
    group_size: int = 16
    seed: int = 0
    n_batches: int = 30

    async def __call__(self) -> tuple[Topics, Topics]:
        name = self.model_name_for_tokenizer
        renderer = get_renderer(self.renderer_name, get_tokenizer(name), model_name=name)
        rng = random.Random(self.seed)
        topics = [rng.choices(TRAIN, k=self.batch_size) for _ in range(self.n_batches)]
        train = [[TopicGroup(topic, renderer, self.group_size) for topic in batch] for batch in topics]
        return Topics(train), Topics([[TopicGroup(topic, renderer, 8) for topic in TEST]])
