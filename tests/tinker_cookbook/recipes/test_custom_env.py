"""The example must be learnable: the tiny model starts neither with nothing nor with everything."""

import asyncio

import pytest
import tinker

from tinker_cookbook.completers import TinkerTokenCompleter
from tinker_cookbook.recipes.custom_env.env import TEST, TRAIN, MyDatasetBuilder, alliteration
from tinker_cookbook.recipes.launch import TINY_MODEL
from tinker_cookbook.rl.rollouts import do_group_rollout


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("small sad snow", 1.0),
        ("Small sad snow.", 1.0),
        ("the sad snow", 2 / 3),
        ("sad snow", 2 / 3),
        ("sad sad snow", 2 / 3),
        ("s so snow", 1 / 3),
        ("small soft sad snow is sad", 4 / 6),
        ("small sad", 0.0),
        ("", 0.0),
    ],
)
def test_the_reward(answer, reward):
    assert alliteration(answer, "snow") == pytest.approx(reward)


def test_the_tiny_model_has_something_to_learn(engine):
    async def rollouts():
        builder = MyDatasetBuilder(model_name_for_tokenizer=TINY_MODEL, renderer_name="chatml", batch_size=4)
        train, test = await builder()
        service = tinker.ServiceClient(base_url=engine.url, api_key=engine.key)
        client = await service.create_sampling_client_async(base_model=TINY_MODEL)
        policy = TinkerTokenCompleter(client, max_tokens=32, seed=0)
        groups = [*train.get_batch(0), *test.get_batch(0)]
        return await asyncio.gather(*(do_group_rollout(group, policy) for group in groups))

    played = asyncio.run(rollouts())
    rewards = [reward for group in played for reward in group.get_total_rewards()]
    assert 0.1 < sum(rewards) / len(rewards) < 0.6
    assert all(len(set(group.get_total_rewards())) > 1 for group in played), (
        "every group has better and worse"
    )


def test_what_is_tested_is_not_trained_on():
    assert not set(TRAIN) & set(TEST)
