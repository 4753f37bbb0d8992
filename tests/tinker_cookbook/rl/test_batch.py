"""The data of a step, and the figures of its parts."""

import asyncio

import pytest

from tests.tinker_cookbook.rl.test_data_processing import episode, group, turn
from tests.tinker_cookbook.rl.test_metrics import datum, reference
from tinker_cookbook.rl.batch import Batch, KLPenalty, Minibatch, make_data
from tinker_cookbook.rl.types import TrajectoryGroup


def test_figures_of_minibatches_are_those_of_the_step():
    one, three = datum([3, 4], [-1.0], [1.0]), datum([3, 4, 5, 6], [-1.0] * 3, [1.0] * 3)
    batch = Batch()
    assert batch.metrics == {}
    batch.minibatches += [
        Minibatch([], [one], [{}], {"kl_policy_base": 1.0, "weight_max": 9.0}),
        Minibatch([], [], []),
        Minibatch([], [three], [{}], {"kl_policy_base": 2.0, "weight_max": 3.0}),
    ]
    assert batch.metrics == {"kl_policy_base": 1.75, "weight_max": 9.0}
    assert batch.trained_tokens == 4


@pytest.mark.parametrize("penalised", [False, True])
def test_a_reply_that_could_not_be_parsed_leaves_no_datum_and_its_reward_counts(penalised):
    garbled = episode(turn([1, 2], [3], -1.0, parse_error_masked=1.0))
    penalty = KLPenalty(reference(), 0.1, 0.5) if penalised else None
    both = TrajectoryGroup([garbled, *group(1.0).trajectories_G], [0.0, 0.0], [{}, {}])
    data_D, metadata_D, metrics = asyncio.run(make_data([both], "group_mean", penalty))
    assert metadata_D == [{"group_idx": 0, "traj_idx": 1}]
    assert len(data_D) == 1
    assert data_D[0].loss_fn_inputs["advantages"].data == pytest.approx([0.0, 1.0, 1.0])
    alone = TrajectoryGroup([garbled, garbled], [0.0, 0.0], [{}, {}])
    assert asyncio.run(make_data([alone], "group_mean", penalty)) == ([], [], {})
    assert bool(metrics) == penalised
