"""Rollout summaries: a JSON row for each trajectory, with its rewards, lengths, metrics and logs but not its text."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinker_cookbook.exceptions import DataValidationError
from tinker_cookbook.rl.types import Trajectory, TrajectoryGroup, Transition
from tinker_cookbook.stores._jsonl import encode_lines
from tinker_cookbook.utils.atomic_file import write_text_atomically
from tinker_cookbook.utils.deprecation import warn_deprecated
from tinker_cookbook.utils.jsonable import to_jsonable

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class RolloutSummaryExportConfig:
    """Where an evaluation puts the summaries of its rollouts."""

    split: str  # "train" or "eval/<label>"
    iteration: int
    base_name: str  # of the file: <base_name>_rollout_summaries.jsonl
    sampling_client_step: int | None = None


@dataclass(frozen=True)
class RolloutSummaryGroup:
    """A group as it is summarised: its episodes, its tags, and which weights sampled it."""

    trajectory_group: TrajectoryGroup
    tags: list[str]
    sampling_client_step: int | None = None  # updates behind the weights that sampled it


def rollout_summaries_jsonl_path(iteration_dir: Path, base_name: str) -> Path:
    """Where the summaries of a step are written."""
    return iteration_dir / f"{base_name}_rollout_summaries.jsonl"


def serialize_rollout_summaries_from_groups(
    *, split: str, iteration: int, groups_P: Sequence[RolloutSummaryGroup]
) -> list[dict[str, Any]]:
    """Plain JSON: a number that JSON cannot write becomes "NaN" or "Infinity", an unknown object its text."""
    return [
        to_jsonable(
            {
                "schema_version": SCHEMA_VERSION,
                "split": split,
                "iteration": iteration,
                "group_idx": group_idx,
                "traj_idx": traj_idx,
                "tags": group.tags,
                "sampling_client_step": group.sampling_client_step,
                **member,
            }
        )
        for group_idx, group in enumerate(groups_P)
        for traj_idx, member in enumerate(_member_rows(group.trajectory_group))
    ]


def write_rollout_summaries_jsonl_from_groups(
    path: Path, *, split: str, iteration: int, groups_P: Sequence[RolloutSummaryGroup]
) -> None:
    """Replaces the file: an iteration that a resumed run repeats counts once."""
    rows = serialize_rollout_summaries_from_groups(split=split, iteration=iteration, groups_P=groups_P)
    write_text_atomically(path, encode_lines(rows).decode())


def serialize_rollout_summaries(
    *,
    split: str,
    iteration: int,
    trajectory_groups_P: Sequence[TrajectoryGroup],
    taglist_P: Sequence[list[str]],
    sampling_client_steps_P: Sequence[int | None] | None = None,
) -> list[dict[str, Any]]:
    """The same from lists side by side."""
    groups_P = _groups(trajectory_groups_P, taglist_P, sampling_client_steps_P)
    return serialize_rollout_summaries_from_groups(split=split, iteration=iteration, groups_P=groups_P)


def write_rollout_summaries_jsonl(
    path: str | Path,
    *,
    split: str,
    iteration: int,
    trajectory_groups_P: Sequence[TrajectoryGroup],
    taglist_P: Sequence[list[str]],
    sampling_client_steps_P: Sequence[int | None] | None = None,
) -> None:
    """Deprecated: writes the summaries of all episodes of a step into a file."""
    warn_deprecated(
        "write_rollout_summaries_jsonl",
        removal_version="0.4.0",
        message="Use write_rollout_summaries_jsonl_from_groups, or TrainingRunStore.write_rollouts.",
    )
    groups_P = _groups(trajectory_groups_P, taglist_P, sampling_client_steps_P)
    write_rollout_summaries_jsonl_from_groups(Path(path), split=split, iteration=iteration, groups_P=groups_P)


def _groups(
    trajectory_groups_P: Sequence[TrajectoryGroup],
    taglist_P: Sequence[list[str]],
    sampling_client_steps_P: Sequence[int | None] | None,
) -> list[RolloutSummaryGroup]:
    steps_P = (
        [None] * len(trajectory_groups_P) if sampling_client_steps_P is None else sampling_client_steps_P
    )
    if not len(trajectory_groups_P) == len(taglist_P) == len(steps_P):
        raise DataValidationError(
            f"one list of tags and one step are needed for each group; there are {len(trajectory_groups_P)} groups, "
            f"{len(taglist_P)} lists of tags and {len(steps_P)} steps"
        )
    return [
        RolloutSummaryGroup(group, tags, step)
        for group, tags, step in zip(trajectory_groups_P, taglist_P, steps_P, strict=True)
    ]


def _member_rows(group: TrajectoryGroup) -> list[dict[str, Any]]:
    members = zip(
        group.trajectories_G, group.get_total_rewards(), group.final_rewards_G, group.metrics_G, strict=True
    )
    return [
        {
            "total_reward": total_reward,
            "final_reward": final_reward,
            "trajectory_metrics": metrics,
            "stop_reason": trajectory.stop_reason,
            "steps": _step_rows(trajectory),
            "final_ob_len": trajectory.final_ob.length,
        }
        for trajectory, total_reward, final_reward, metrics in members
    ]


def _step_rows(trajectory: Trajectory) -> list[dict[str, Any]]:
    return [_step_row(index, transition) for index, transition in enumerate(trajectory.transitions)]


def _step_row(index: int, transition: Transition) -> dict[str, Any]:
    return {
        "step_idx": index,
        "ob_len": transition.ob.length,
        "ac_len": len(transition.ac.tokens),
        "reward": transition.reward,
        "episode_done": transition.episode_done,
        "metrics": transition.metrics,
        "logs": transition.logs,
    }
