"""Tongue twisters: words about a thing that begin as the thing does ("small soft sad snow").

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
from tinker_cookbook.tokenizer_utils import get_tokenizer

TRAIN = "sea sky sun soup song stone summer boat bread bridge cat hill house garden lake winter".split()
TEST = "snow horse wind dog night".split()
WORDS = 4


def share_of_same_start(answer: str, topic: str) -> float:
    """Of at least so many words, none counted twice."""
    words = answer.lower().rstrip(".").split()
    return (
        len({word for word in words if word[0] == topic[0]}) / max(len(words), WORDS)
        if topic in words
        else 0.0
    )


class TongueTwister(MessageEnv):  # 1. one episode: what the model reads, and what its answer is worth
    def __init__(self, topic: str):
        self.topic = topic

    async def initial_observation(self) -> list[Message]:
        return [Message(role="user", content=f"Describe the {self.topic} in exactly {WORDS} words.")]

    async def step(self, message: Message) -> MessageStepResult:
        reward = share_of_same_start(get_text_content(message), self.topic)
        return MessageStepResult(
            reward, episode_done=True, next_messages=[], metrics={"perfect": reward == 1}
        )


@dataclass(frozen=True)
class TopicGroup(EnvGroupBuilder):  # 2. several tries at the same thing: the better ones are learned from
    topic: str
    renderer: Renderer
    group_size: int

    async def make_envs(self) -> Sequence[Env]:
        return [EnvFromMessageEnv(self.renderer, TongueTwister(self.topic)) for _ in range(self.group_size)]


@dataclass(frozen=True)
class Topics(RLDataset):  # 3. batches of groups, by index: the same one whenever it is asked for
    batches: list[list[TopicGroup]]

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        return self.batches[index]

    def __len__(self) -> int:
        return len(self.batches)


@chz.chz
class MyDatasetBuilder(
    RLDatasetBuilder
):  # 4. the config; fields of these names are filled in by the command line
    model_name_for_tokenizer: str
    renderer_name: str
    batch_size: int = 8
    group_size: int = 16
    n_batches: int = 30
    seed: int = 0

    async def __call__(self) -> tuple[Topics, Topics]:
        tokenizer = get_tokenizer(self.model_name_for_tokenizer)
        renderer = get_renderer(self.renderer_name, tokenizer, model_name=self.model_name_for_tokenizer)
        draw = random.Random(self.seed)
        topics = [draw.choices(TRAIN, k=self.batch_size) for _ in range(self.n_batches)]
        train = [[TopicGroup(topic, renderer, self.group_size) for topic in batch] for batch in topics]
        return Topics(train), Topics([[TopicGroup(topic, renderer, 8) for topic in TEST]])
