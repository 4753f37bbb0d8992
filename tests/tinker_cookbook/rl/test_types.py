import asyncio
import inspect
import pickle

import pytest
import tinker

from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.rl.types import (
    Env,
    EnvGroupBuilder,
    RLDatasetBuilder,
    StepResult,
    Trajectory,
    TrajectoryGroup,
    Transition,
)

NOTHING = tinker.ModelInput.empty()


def trajectory(*rewards: float) -> Trajectory:
    action = TokensWithLogprobs([1], [-0.5])
    last = len(rewards) - 1
    transitions = [Transition(NOTHING, action, reward, i == last) for i, reward in enumerate(rewards)]
    return Trajectory(transitions, NOTHING)


class Empty(EnvGroupBuilder):
    async def make_envs(self):
        return []


def test_a_total_reward_is_that_of_the_steps_and_of_the_group():
    group = TrajectoryGroup([trajectory(1.0, 0.5), trajectory()], [0.25, -1.0], [{}, {}])
    assert group.get_total_rewards() == [1.75, -1.0]


def test_rewards_of_another_number_than_trajectories_are_refused():
    with pytest.raises(ValueError, match="zip"):
        TrajectoryGroup([trajectory(1.0)], [], [{}]).get_total_rewards()


def test_a_group_gives_no_rewards_of_its_own_unless_it_says_so():
    group = Empty()
    rewards = asyncio.run(group.compute_group_rewards([trajectory(1.0), trajectory(2.0)], []))
    assert rewards == [(0.0, {}), (0.0, {})]
    assert rewards[0][1] is not rewards[1][1], "each may be filled by itself"
    asyncio.run(group.cleanup())
    assert group.logging_tags() == []


def test_metrics_are_not_shared():
    assert StepResult(0.0, True, NOTHING, []).metrics is not StepResult(0.0, True, NOTHING, []).metrics


def test_a_group_travels_to_another_process():
    group = TrajectoryGroup([trajectory(1.0)], [0.0], [{}])
    assert pickle.loads(pickle.dumps(group)) == group
    assert isinstance(pickle.loads(pickle.dumps(Empty())), Empty)


@pytest.mark.parametrize("kind", [Env, EnvGroupBuilder, RLDatasetBuilder])
def test_what_users_must_write_is_abstract(kind):
    assert inspect.isabstract(kind)
    with pytest.raises(TypeError, match="abstract"):
        kind()
