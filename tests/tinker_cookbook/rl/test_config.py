"""What a configuration refuses, before any client is made, and what it derives."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.tinker_cookbook.rl.small_runs import config, problems
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.rl.config import AsyncConfig, StreamMinibatchConfig
from tinker_cookbook.rl.rollout_limits import TerminationRewardPolicy
from tinker_cookbook.rl.rollout_strategy import FailFast, MinViableGroup, RetryOnFailure


def made(**fields: Any):
    return config(Path("somewhere"), problems(1), **fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"advantage": "grpo"}, "no advantage estimator 'grpo'; there are group_mean"),
        ({"kl_penalty_coef": 0.1}, "kl_penalty_coef needs a reference"),
        ({"max_tokens": 0}, "max_tokens=0 must be at least 1"),
        ({"num_substeps": 0}, "num_substeps=0"),
        ({"warmup_steps": -1}, "warmup_steps=-1"),
        ({"group_timeout_seconds": -1.0}, "group_timeout_seconds"),
        ({"max_importance_weight": -1.0}, "max_importance_weight"),
        ({"kl_penalty_coef": -1.0}, "kl_penalty_coef"),
        ({"entropy_coef": -1.0}, "entropy_coef"),
        (
            {"async_config": AsyncConfig(max_steps_off_policy=-1, groups_per_batch=2)},
            "max_steps_off_policy=-1",
        ),
        ({"async_config": AsyncConfig(max_steps_off_policy=1, groups_per_batch=0)}, "groups_per_batch=0"),
        (
            {"stream_minibatch_config": StreamMinibatchConfig(groups_per_batch=4, num_minibatches=0)},
            "num_minibatches=0",
        ),
        (
            {"stream_minibatch_config": StreamMinibatchConfig(groups_per_batch=4, num_minibatches=3)},
            "groups_per_batch=4 must be divisible by num_substeps × num_minibatches = 3",
        ),
        (
            {
                "stream_minibatch_config": StreamMinibatchConfig(groups_per_batch=4, num_minibatches=4),
                "num_substeps": 2,
            },
            "= 8",
        ),
        (
            {
                "stream_minibatch_config": StreamMinibatchConfig(groups_per_batch=4, num_minibatches=2),
                "async_config": AsyncConfig(max_steps_off_policy=1, groups_per_batch=2),
            },
            "must be the same",
        ),
    ],
)
def test_a_field_that_cannot_work_is_refused(fields, words):
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        made(**fields)


def test_strategies_and_termination():
    assert made().effective_rollout_strategy() == FailFast()
    assert made(rollout_error_tolerance=False).effective_rollout_strategy() == FailFast()
    assert made(rollout_error_tolerance=True).effective_rollout_strategy() == RetryOnFailure()
    own = MinViableGroup(min_successful=2)
    assert made(rollout_error_tolerance=own).effective_rollout_strategy() == own
    assert made().effective_termination() is None
    policy = TerminationRewardPolicy(zero_reward_on_limit=True)
    assert made(termination=policy).effective_termination() == policy


def test_staleness_and_minibatches_are_derived():
    assert (made().max_staleness, made().num_minibatches) == (0, 1)
    stream = StreamMinibatchConfig(groups_per_batch=4, num_minibatches=2)
    ahead = AsyncConfig(max_steps_off_policy=3, groups_per_batch=4)
    both = made(stream_minibatch_config=stream, async_config=ahead)
    assert (both.max_staleness, both.num_minibatches) == (3, 2)
