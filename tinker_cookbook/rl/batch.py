"""The groups of one training step and the data made of them.

Suffixes: `_P` one per group, `_D` one per datum.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import tinker

from tinker_cookbook.rl.data_processing import assemble_training_data, compute_advantages, sampled_tokens
from tinker_cookbook.rl.metrics import incorporate_entropy_bonus, incorporate_kl_penalty
from tinker_cookbook.rl.pipeline import RolledOut
from tinker_cookbook.rl.types import TrajectoryGroup

logger = logging.getLogger(__name__)

Metrics = dict[str, Any]


@dataclass(frozen=True)
class KLPenalty:
    """What leaving the reference costs."""

    reference_client: tinker.SamplingClient
    coef: float
    discount_factor: float


@dataclass
class Minibatch:
    """Groups that are trained on together, and the data made of them."""

    rolled_P: list[RolledOut]
    data_D: list[tinker.Datum]
    metadata_D: list[dict[str, int]]
    metrics: Metrics = field(default_factory=dict)

    @property
    def action_tokens(self) -> float:
        return sum(sum(datum.loss_fn_inputs["mask"].data) for datum in self.data_D)


@dataclass
class Batch:
    """What went into one step."""

    rolled_P: list[RolledOut] = field(default_factory=list)  # also those that nothing is learned from
    minibatches: list[Minibatch] = field(default_factory=list)

    @property
    def whole_groups(self) -> list[RolledOut]:
        """Groups that did not fail, in the order of the data."""
        return in_order(rolled for rolled in self.rolled_P if isinstance(rolled.result, TrajectoryGroup))

    @property
    def all_data(self) -> list[tinker.Datum]:
        return [datum for minibatch in self.minibatches for datum in minibatch.data_D]

    @property
    def metrics(self) -> Metrics:
        """Those of the minibatches: a `..._max` as their maximum, all else as the mean over their action tokens."""
        parts = [part for part in self.minibatches if part.metrics]
        total = sum(part.action_tokens for part in parts)
        return {
            key: max(part.metrics[key] for part in parts)
            if key.endswith("_max")
            else sum(part.metrics[key] * part.action_tokens for part in parts) / total
            for key in (parts[0].metrics if parts else ())
        }

    @property
    def trained_tokens(self) -> int:
        return sum(datum.model_input.length for datum in self.all_data)

    @property
    def sampled_tokens(self) -> int:
        return sum(
            sampled_tokens(each) for rolled in self.whole_groups for each in rolled.group.trajectories_G
        )


def in_order(rolled_P: Iterable[RolledOut]) -> list[RolledOut]:
    """That of the data, whichever was done first."""
    return sorted(rolled_P, key=lambda rolled: (rolled.id.batch, rolled.id.index))


async def make_data(
    groups_P: list[TrajectoryGroup], advantage: str, penalty: KLPenalty | None, entropy_coef: float = 0.0
) -> tuple[list[tinker.Datum], list[dict[str, int]], Metrics]:
    """Datums, of which group and member each is, and the figures of the penalty."""
    if penalty is None and advantage != "reward" and any(len(each.trajectories_G) == 1 for each in groups_P):
        logger.warning(
            "a group of one has nothing to compare its reward with: its advantage is 0, and nothing is learned from "
            "it. Make groups larger, or set advantage=reward"
        )
    advantages_P = compute_advantages(groups_P, advantage)
    data_D, metadata_D = _with_actions(*assemble_training_data(groups_P, advantages_P))
    if entropy_coef and data_D:
        incorporate_entropy_bonus(data_D, entropy_coef)
    if penalty is None or not data_D:
        return data_D, metadata_D, {}
    metrics = await incorporate_kl_penalty(
        data_D, penalty.reference_client, penalty.coef, penalty.discount_factor
    )
    return data_D, metadata_D, metrics


def _with_actions(
    data_D: list[tinker.Datum], metadata_D: list[dict[str, int]]
) -> tuple[list[tinker.Datum], list[dict[str, int]]]:
    """Without those that have no token to learn from, such as an episode whose only reply could not be parsed."""
    acting = [any(datum.loss_fn_inputs["mask"].data) for datum in data_D]
    return list(compress(data_D, acting)), list(compress(metadata_D, acting))
