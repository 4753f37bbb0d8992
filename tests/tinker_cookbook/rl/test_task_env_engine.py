"""A game of several turns, played by the tiny model on a real engine."""

import asyncio

import tinker

from tests.server import running_server
from tests.tinker_cookbook.rl.tiny import MODEL, chatml
from tinker_cookbook.completers import TinkerTokenCompleter
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.rl.task_env import TaskGroupBuilder
from tinker_cookbook.tasks.guess_number import PHRASINGS, Hidden


def test_the_tiny_model_plays_to_the_end_and_each_game_is_one_sequence(tmp_path):
    with running_server(tmp_path) as server:
        service = tinker.ServiceClient(base_url=server.url, api_key=server.key)
        policy = TinkerTokenCompleter(service.create_sampling_client(base_model=MODEL), max_tokens=32, seed=0)

        async def play():
            problems = [Hidden(number, 10, PHRASINGS[0]) for number in (3, 5, 8)]
            groups = [TaskGroupBuilder("guess_number", problem, chatml(), 4) for problem in problems]
            return await asyncio.gather(*(do_group_rollout(group, policy) for group in groups))

        played = asyncio.run(play())
    trajectories = [trajectory for group in played for trajectory in group.trajectories_G]
    rewards = [reward for group in played for reward in group.get_total_rewards()]
    assert set(rewards) == {0.0, 1.0}, "it finds some of the numbers, and not all"
    assert max(len(trajectory.transitions) for trajectory in trajectories) > 2, "over several turns"
    for trajectory in trajectories:
        assert {"correct", "format"} <= trajectory.transitions[-1].metrics.keys()
        for turn, after in zip(trajectory.transitions, trajectory.transitions[1:], strict=False):
            so_far = turn.ob.to_ints() + turn.ac.tokens
            assert after.ob.to_ints()[: len(so_far)] == so_far
