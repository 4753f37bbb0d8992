"""From episodes to training data: advantages, and datums of as few tokens as the episodes allow.

Suffixes: `_P` one per group, `_G` one per member, `_T` one per token, `_D` one per datum.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import tinker
import torch

from tinker_cookbook.rl.advantages import get_estimator
from tinker_cookbook.rl.types import (
    PARSE_ERROR_MASKED_METRIC_KEY,
    Observation,
    Trajectory,
    TrajectoryGroup,
    Transition,
)
from tinker_cookbook.supervised.common import create_rightshifted_model_input_and_leftshifted_targets
from tinker_cookbook.utils.misc_utils import all_same, safezip

logger = logging.getLogger(__name__)

FlatObElem = int | tinker.ModelInputChunk
FlatOb = list[FlatObElem]


# --- advantages -------------------------------------------------------------------------------------------


def compute_advantages(
    trajectory_groups_P: list[TrajectoryGroup], estimator: str = "group_mean"
) -> list[torch.Tensor]:
    """Of each group, one number per member, by its own size: a group that lost members centres on those it has."""
    estimate = get_estimator(estimator)
    return [
        estimate(
            torch.tensor(group.get_total_rewards(), dtype=torch.float64),
            torch.tensor([sampled_tokens(each) for each in group.trajectories_G], dtype=torch.float64),
        ).float()
        for group in trajectory_groups_P
    ]


def sampled_tokens(trajectory: Trajectory) -> int:
    return sum(len(transition.ac.tokens) for transition in trajectory.transitions)


def has_constant_reward(group: TrajectoryGroup) -> bool:
    """Nothing can be learned from it: no member was better than another."""
    return all_same(group.get_total_rewards())


def remove_constant_reward_groups(trajectory_groups_P: list[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """Those whose members differ in reward; the first group alone if there are none."""
    kept = [group for group in trajectory_groups_P if not has_constant_reward(group)]
    if not kept and trajectory_groups_P:
        logger.warning("all %d groups have constant rewards: keeping the first", len(trajectory_groups_P))
        return trajectory_groups_P[:1]
    return kept


# --- datums -----------------------------------------------------------------------------------------------


@dataclass
class _Sequence:
    """What a datum is made of: tokens (a chunk that is no text counts as one element), and what is known of each."""

    elements: FlatOb = field(default_factory=list)
    logprobs_T: list[float] = field(default_factory=list)
    advantages_T: list[float] = field(default_factory=list)
    mask_T: list[float] = field(default_factory=list)

    def observe(self, elements: FlatOb) -> None:
        tokens = sum(_length(element) for element in elements)
        self._append(elements, [0.0] * tokens, 0.0, 0.0)

    def act(self, transition: Transition, advantage: float) -> None:
        """An action with the mark of a parse error stays in the context and is kept out of the loss."""
        tokens = transition.ac.tokens
        if not tokens:  # an episode that ended before anything was sampled
            return
        logprobs_T = transition.ac.logprobs
        masked = transition.metrics.get(PARSE_ERROR_MASKED_METRIC_KEY, 0.0) >= 1.0
        if len(tokens) != len(logprobs_T):
            raise ValueError(f"an action of {len(tokens)} tokens has {len(logprobs_T)} logprobs")
        self._append(list(tokens), logprobs_T, 0.0 if masked else advantage, 0.0 if masked else 1.0)

    def _append(self, elements: FlatOb, logprobs_T: Sequence[float], advantage: float, mask: float) -> None:
        self.elements.extend(elements)
        self.logprobs_T.extend(logprobs_T)
        self.advantages_T.extend([advantage] * len(logprobs_T))
        self.mask_T.extend([mask] * len(logprobs_T))

    def is_continued_by(self, observation: FlatOb) -> bool:
        return observation[: len(self.elements)] == self.elements

    def to_datum(self) -> tinker.Datum:
        inputs, targets = create_rightshifted_model_input_and_leftshifted_targets(_chunks(self.elements))
        fields = {
            "target_tokens": tinker.TensorData(data=targets, dtype="int64", shape=[len(targets)]),
            "logprobs": _float_tensor(self.logprobs_T[1:]),
            "advantages": _float_tensor(self.advantages_T[1:]),
            "mask": _float_tensor(self.mask_T[1:]),
        }
        assert {inputs.length} == {len(each.data) for each in fields.values()}
        return tinker.Datum(model_input=inputs, loss_fn_inputs=fields)


def trajectory_to_data(traj: Trajectory, traj_advantage: float) -> list[tinker.Datum]:
    """One datum for as long as each observation goes on from the one before and its action, a new one where not.

    So a conversation that only grows is trained on once, not once for each of its turns.
    """
    data: list[tinker.Datum] = []
    sequence = _Sequence()
    for transition in traj.transitions:
        observation = _flat(transition.ob)
        if sequence.is_continued_by(observation):
            sequence.observe(observation[len(sequence.elements) :])
        else:
            data.append(sequence.to_datum())
            sequence = _Sequence()
            sequence.observe(observation)
        sequence.act(transition, traj_advantage)
    return [*data, sequence.to_datum()] if sequence.elements else data


def assemble_training_data(
    trajectory_groups_P: list[TrajectoryGroup], advantages_P: list[torch.Tensor]
) -> tuple[list[tinker.Datum], list[dict[str, int]]]:
    """All datums, and of each which group's and which member's it is."""
    data_D: list[tinker.Datum] = []
    metadata_D: list[dict[str, int]] = []
    for group_idx, (group, advantages_G) in enumerate(safezip(trajectory_groups_P, advantages_P)):
        for traj_idx, (trajectory, advantage) in enumerate(
            safezip(group.trajectories_G, advantages_G.tolist())
        ):
            for datum in trajectory_to_data(trajectory, advantage):
                data_D.append(datum)
                metadata_D.append({"group_idx": group_idx, "traj_idx": traj_idx})
    return data_D, metadata_D


def _flat(observation: Observation) -> FlatOb:
    flat: FlatOb = []
    for chunk in observation.chunks:
        if isinstance(chunk, tinker.EncodedTextChunk):
            flat.extend(chunk.tokens)
        else:
            flat.append(chunk)
    return flat


def _length(element: FlatObElem) -> int:
    return 1 if isinstance(element, int) else element.length


def _chunks(elements: FlatOb) -> list[tinker.ModelInputChunk]:
    """Neighbouring tokens as one chunk of text."""
    chunks: list[tinker.ModelInputChunk] = []
    run: list[int] = []
    for element in elements:
        if isinstance(element, int):
            run.append(element)
            continue
        if run:
            chunks.append(tinker.EncodedTextChunk(tokens=run))
            run = []
        chunks.append(element)
    return [*chunks, tinker.EncodedTextChunk(tokens=run)] if run else chunks


def _float_tensor(values: list[float]) -> tinker.TensorData:
    return tinker.TensorData(data=values, dtype="float32", shape=[len(values)])
