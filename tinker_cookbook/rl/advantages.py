"""How much better an episode was than expected, from the rewards of its group. Pure functions, chosen by name.

Each takes the rewards of a group and how many tokens each member sampled, both of shape (G,), and returns (G,).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from tinker_cookbook.exceptions import ConfigurationError

Estimator = Callable[[Tensor, Tensor], Tensor]

_SMALL = 1e-6  # keeps a division by the spread of nearly equal rewards finite


def group_mean(rewards_G: Tensor, lengths_G: Tensor) -> Tensor:
    """Reward less the mean of the group."""
    return rewards_G - rewards_G.mean()


def group_mean_std(rewards_G: Tensor, lengths_G: Tensor) -> Tensor:
    """In units of the group's spread, as GRPO: groups that are nearly decided weigh as much as open ones."""
    centred_G = rewards_G - rewards_G.mean()
    return centred_G / (centred_G.square().mean().sqrt() + _SMALL)


def leave_one_out(rewards_G: Tensor, lengths_G: Tensor) -> Tensor:
    """Reward less the mean of the others (RLOO): the baseline does not depend on the action it is for."""
    size = len(rewards_G)
    return (rewards_G - rewards_G.mean()) * (size / (size - 1)) if size > 1 else torch.zeros_like(rewards_G)


def length_normalised(rewards_G: Tensor, lengths_G: Tensor) -> Tensor:
    """`group_mean`, with long answers weighing as much as short ones: losses are sums over tokens."""
    lengths_G = lengths_G.clamp(min=1)
    return group_mean(rewards_G, lengths_G) * (lengths_G.mean() / lengths_G)


def reward(rewards_G: Tensor, lengths_G: Tensor) -> Tensor:
    """The reward itself, without a baseline: for groups of one."""
    return rewards_G.clone()


ESTIMATORS: dict[str, Estimator] = {
    "group_mean": group_mean,
    "group_mean_std": group_mean_std,
    "rloo": leave_one_out,
    "leave_one_out": leave_one_out,
    "length_normalised": length_normalised,
    "reward": reward,
}


def get_estimator(name: str) -> Estimator:
    if name not in ESTIMATORS:
        raise ConfigurationError(f"no advantage estimator {name!r}; there are {', '.join(ESTIMATORS)}")
    return ESTIMATORS[name]
