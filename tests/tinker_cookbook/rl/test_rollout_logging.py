"""Rows of rollouts as tools read them."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker

from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.exceptions import DataValidationError
from tinker_cookbook.rl.rollout_logging import (
    RolloutSummaryGroup,
    rollout_summaries_jsonl_path,
    serialize_rollout_summaries,
    serialize_rollout_summaries_from_groups,
    write_rollout_summaries_jsonl,
    write_rollout_summaries_jsonl_from_groups,
)
from tinker_cookbook.rl.types import Trajectory, TrajectoryGroup, Transition
from tinker_cookbook.stores import TrainingRunStore


class Odd:
    def __str__(self) -> str:
        return "odd"


def transition(ob_len: int, ac_len: int, reward: float, *, done: bool, **more: Any) -> Transition:
    action = TokensWithLogprobs([7] * ac_len, [-0.5] * ac_len)
    return Transition(tinker.ModelInput.from_ints([1] * ob_len), action, reward, done, **more)


def group(**first_step: Any) -> TrajectoryGroup:
    two_turns = Trajectory(
        [transition(3, 2, 0.25, done=False, **first_step), transition(6, 1, 0.5, done=True)],
        tinker.ModelInput.from_ints([1] * 7),
        stop_reason="completed",
    )
    none = Trajectory([], tinker.ModelInput.empty())
    return TrajectoryGroup([two_turns, none], [1.0, -1.0], [{"won": 1}, {}])


def test_a_row_has_the_whole_schema():
    rows = serialize_rollout_summaries_from_groups(
        split="train",
        iteration=4,
        groups_P=[RolloutSummaryGroup(group(metrics={"format": 1.0}, logs={"answer": "12"}), ["sums"], 3)],
    )
    assert rows[0] == {
        "schema_version": 1,
        "split": "train",
        "iteration": 4,
        "group_idx": 0,
        "traj_idx": 0,
        "tags": ["sums"],
        "sampling_client_step": 3,
        "total_reward": 1.75,
        "final_reward": 1.0,
        "trajectory_metrics": {"won": 1},
        "stop_reason": "completed",
        "steps": [
            {
                "step_idx": 0,
                "ob_len": 3,
                "ac_len": 2,
                "reward": 0.25,
                "episode_done": False,
                "metrics": {"format": 1.0},
                "logs": {"answer": "12"},
            },
            {
                "step_idx": 1,
                "ob_len": 6,
                "ac_len": 1,
                "reward": 0.5,
                "episode_done": True,
                "metrics": {},
                "logs": {},
            },
        ],
        "final_ob_len": 7,
    }
    assert (rows[1]["traj_idx"], rows[1]["steps"], rows[1]["total_reward"]) == (1, [], -1.0)


def test_odd_values_become_plain_json():
    odd = {"np": np.float32(0.5), "count": np.int64(3), "nan": math.nan, "flag": np.bool_(True)}
    (row, _) = serialize_rollout_summaries(
        split="eval/test",
        iteration=0,
        trajectory_groups_P=[group(metrics=odd, logs={"odd": Odd(), "inf": math.inf})],
        taglist_P=[[]],
    )
    assert row["steps"][0]["metrics"] == {"np": 0.5, "count": 3, "nan": "NaN", "flag": True}
    assert row["steps"][0]["logs"] == {"odd": "odd", "inf": "Infinity"}
    assert row["sampling_client_step"] is None
    json.dumps(row, allow_nan=False)


def test_the_store_reads_what_is_written(tmp_path: Path):
    path = rollout_summaries_jsonl_path(tmp_path / "iteration_000002", "train")
    groups_P = [RolloutSummaryGroup(group(), ["a"]), RolloutSummaryGroup(group(), ["b"], 1)]
    for _ in range(2):  # the second replaces the first
        write_rollout_summaries_jsonl_from_groups(path, split="train", iteration=2, groups_P=groups_P)
    store = TrainingRunStore.from_uri(str(tmp_path))
    rows = store.read_rollouts(2)
    assert [(row["group_idx"], row["traj_idx"], row["tags"]) for row in rows] == [
        (0, 0, ["a"]),
        (0, 1, ["a"]),
        (1, 0, ["b"]),
        (1, 1, ["b"]),
    ]
    assert store.read_single_rollout(2, 1, 0) == rows[2]
    assert store.list_iterations()[0].has_train_rollouts


def test_the_old_writer_warns_and_works(tmp_path: Path):
    path = tmp_path / "new" / "x.jsonl"
    with pytest.warns(DeprecationWarning, match=r"0\.4\.0.*from_groups"):
        write_rollout_summaries_jsonl(
            str(path),
            split="train",
            iteration=0,
            trajectory_groups_P=[group()],
            taglist_P=[["t"]],
            sampling_client_steps_P=[5],
        )
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["sampling_client_step"] for row in rows] == [5, 5]


def test_lists_of_different_lengths_are_refused():
    with pytest.raises(DataValidationError, match="1 groups, 2 lists of tags"):
        serialize_rollout_summaries(
            split="train", iteration=0, trajectory_groups_P=[group()], taglist_P=[[], []]
        )
