import pickle

import pytest

from tinker_cookbook.rl.rollout_limits import (
    DEFAULT_LIMIT_STOP_REASONS,
    ParseErrorPolicy,
    RolloutLimits,
    TerminationRewardPolicy,
)
from tinker_cookbook.rl.rollout_presets import (
    RolloutConfig,
    agentic,
    default_rollout_config_for_model,
    default_rollout_strategy_for_model,
    simple,
)
from tinker_cookbook.rl.rollout_strategy import FailFast, MinViableGroup


@pytest.mark.parametrize("value", [0, -1, float("nan")])
@pytest.mark.parametrize(
    "name",
    [
        "max_turns",
        "max_trajectory_tokens",
        "max_sampled_tokens",
        "max_tool_calls",
        "max_turn_tokens",
        "rollout_timeout_seconds",
        "sampling_turn_timeout_seconds",
    ],
)
def test_a_limit_is_above_zero(name, value):
    with pytest.raises(ValueError, match=f"{name} must be above 0"):
        RolloutLimits(**{name: value})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_consecutive": -1}, "max_consecutive must be 0 or more"),
        ({"penalty_per_error": -0.1}, "penalty_per_error must be 0 or more"),
        ({"penalty_per_error": float("nan")}, "penalty_per_error must be 0 or more"),
        ({"retry_message_template": "again"}, "must contain {details}"),
    ],
)
def test_a_policy_for_parse_errors_that_cannot_work_is_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        ParseErrorPolicy(**fields)
    with pytest.raises(ValueError, match="grader_timeout_seconds must be above 0"):
        TerminationRewardPolicy(grader_timeout_seconds=0)


def test_settings_survive_pickle():
    for settings in (RolloutLimits(max_turns=3), ParseErrorPolicy(terminal_reward=-1), agentic()):
        assert pickle.loads(pickle.dumps(settings)) == settings


def test_only_limits_are_limit_stops():
    assert set(DEFAULT_LIMIT_STOP_REASONS) == {
        "max_tokens",
        "max_sampled_tokens",
        "max_turns",
        "max_tool_calls",
        "rollout_timeout",
    }


def test_presets():
    assert simple() == RolloutConfig()
    assert simple().limits == RolloutLimits()
    assert agentic() == RolloutConfig(
        limits=RolloutLimits(max_turns=10, max_trajectory_tokens=65536, max_tool_calls=30),
        parse_errors=ParseErrorPolicy(max_consecutive=2),
        termination=TerminationRewardPolicy(
            zero_reward_on_limit=True, skip_grading_on_timeout=True, grader_timeout_seconds=900
        ),
        tool_execution="sequential",
    )


@pytest.mark.parametrize(
    ("name", "is_agentic"),
    [
        ("thinkingmachines/Inkling", True),
        ("thinkingmachines/Inkling-2", True),
        ("thinkingmachines/Inkling:peft:131072", True),
        ("thinkingmachines/Model", False),
        ("other/x:thinkingmachines/Inkling", False),
        ("tinker-engine/tiny-chat", False),
    ],
)
def test_defaults_by_model(name, is_agentic):
    assert default_rollout_config_for_model(name) == (agentic() if is_agentic else simple())
    expected = MinViableGroup() if is_agentic else FailFast()
    assert default_rollout_strategy_for_model(name) == expected
