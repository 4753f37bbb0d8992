"""Rollout settings by name: `simple()` limits nothing, `agentic()` is for long conversations with tools."""

from typing import Literal, TypeAlias

import chz

from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, RolloutLimits, TerminationRewardPolicy
from tinker_cookbook.rl.rollout_strategy import FailFast, MinViableGroup, RolloutStrategy

ToolExecution: TypeAlias = Literal["sequential", "parallel", "concurrent_safe"]

_AGENTIC_MODELS = "thinkingmachines/Inkling"


@chz.chz
class RolloutConfig:
    """Limits of an episode, and what comes of reaching them."""

    limits: RolloutLimits = chz.field(default_factory=RolloutLimits)
    parse_errors: ParseErrorPolicy | None = None  # None: the environment's own way
    termination: TerminationRewardPolicy | None = None  # None: rewards stand as they are
    tool_execution: ToolExecution = "parallel"  # of the tool calls of one message


def simple() -> RolloutConfig:
    """No limits but those of the model."""
    return RolloutConfig()


def agentic() -> RolloutConfig:
    """For long episodes with tools: limits, and no reward for reaching one."""
    return RolloutConfig(
        limits=RolloutLimits(max_turns=10, max_trajectory_tokens=65536, max_tool_calls=30),
        parse_errors=ParseErrorPolicy(max_consecutive=2),
        termination=TerminationRewardPolicy(
            zero_reward_on_limit=True, skip_grading_on_timeout=True, grader_timeout_seconds=900
        ),
        tool_execution="sequential",
    )


def default_rollout_config_for_model(model_name: str) -> RolloutConfig:
    """The preset for a model of this name."""
    return agentic() if _is_agentic(model_name) else simple()


def default_rollout_strategy_for_model(model_name: str) -> RolloutStrategy:
    """What a failed episode means, for a model of this name."""
    return MinViableGroup() if _is_agentic(model_name) else FailFast()


def _is_agentic(model_name: str) -> bool:
    return model_name.partition(":")[0].startswith(_AGENTIC_MODELS)
