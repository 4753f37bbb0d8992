"""How far a rollout may go, what a malformed message costs, and what reaching a limit does to the reward."""

import math
from typing import Any

import chz

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.rl.types import StopReason

DEFAULT_RETRY_MESSAGE_TEMPLATE = "The previous message had a formatting issue.\nError: {details}"

DEFAULT_LIMIT_STOP_REASONS: tuple[str, ...] = (
    StopReason.MAX_TOKENS,
    StopReason.MAX_SAMPLED_TOKENS,
    StopReason.MAX_TURNS,
    StopReason.MAX_TOOL_CALLS,
    StopReason.ROLLOUT_TIMEOUT,
)
"""The stops at which an episode was not over but had used up what it was given."""


def _positive_or_none(self: Any, name: str) -> None:
    value = getattr(self, name)
    if value is not None and not value > 0:
        raise ConfigurationError(f"{name} must be above 0, or None for no limit; got {value}")


def _non_negative(self: Any, name: str) -> None:
    value = getattr(self, name)
    if not 0 <= value < math.inf:
        raise ConfigurationError(f"{name} must be 0 or more, got {value}")


def _contains_details_placeholder(self: Any, name: str) -> None:
    value = getattr(self, name)
    if "{details}" not in value:
        raise ConfigurationError(f"{name} must contain {{details}}, where the error goes; got {value!r}")


@chz.chz
class RolloutLimits:
    """Of one episode. None is no limit."""

    max_turns: int | None = chz.field(default=None, validator=_positive_or_none)
    # Of the next prompt and what is sampled after it.
    max_trajectory_tokens: int | None = chz.field(default=None, validator=_positive_or_none)
    # Of all that is sampled in the episode.
    max_sampled_tokens: int | None = chz.field(default=None, validator=_positive_or_none)
    # Counted by the environment, which is told the limit.
    max_tool_calls: int | None = chz.field(default=None, validator=_positive_or_none)
    # Of each completion. Cuts a turn off, never ends the episode.
    max_turn_tokens: int | None = chz.field(default=None, validator=_positive_or_none)
    # Ends the episode; the turns so far stand.
    rollout_timeout_seconds: float | None = chz.field(default=None, validator=_positive_or_none)
    # Of each call of the policy. An error: the episode fails.
    sampling_turn_timeout_seconds: float | None = chz.field(default=None, validator=_positive_or_none)


@chz.chz
class ParseErrorPolicy:
    """What a message that cannot be parsed leads to."""

    # Malformed turns in a row that are answered with the message below; the next one ends the episode.
    max_consecutive: int = chz.field(default=0, validator=_non_negative)
    retry_message_template: str = chz.field(
        default=DEFAULT_RETRY_MESSAGE_TEMPLATE, validator=_contains_details_placeholder
    )
    # Taken off the reward for each malformed turn after which the episode goes on.
    penalty_per_error: float = chz.field(default=0.0, validator=_non_negative)
    # Of the malformed turn that ends the episode.
    terminal_reward: float = 0.0
    # Keep malformed turns out of the loss.
    mask_error_turns: bool = False


@chz.chz
class TerminationRewardPolicy:
    """What a group makes of episodes that a limit ended."""

    # A positive total of such an episode becomes 0: half a solution must not pay.
    zero_reward_on_limit: bool = False
    limit_stop_reasons: tuple[str, ...] = DEFAULT_LIMIT_STOP_REASONS
    # Do not grade a group of which every member ran out of time (only with zero_reward_on_limit).
    skip_grading_on_timeout: bool = False
    grader_timeout_seconds: float | None = chz.field(default=None, validator=_positive_or_none)
    # The grader sees the whole conversation, not just what was said during the episode.
    pass_all_messages_to_grader: bool = False
