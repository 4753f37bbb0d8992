"""Figures of episodes, and the evaluation on a test set."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.tinker_cookbook.fake_service import FakeSamplingClient, FakeService
from tests.tinker_cookbook.rl.fakes import Group, Policy, Raises, Turns
from tests.tinker_cookbook.rl.small_runs import Problem, Problems
from tests.tinker_cookbook.rl.test_data_processing import episode, group, turn
from tinker_cookbook.rl.metric_util import (
    RLTestSetEvaluator,
    compute_trajectory_metrics,
    dataset_to_env_group_builders,
)
from tinker_cookbook.rl.rollout_limits import TerminationRewardPolicy
from tinker_cookbook.rl.rollout_logging import RolloutSummaryExportConfig
from tinker_cookbook.rl.rollout_strategy import MinViableGroup
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, TrajectoryGroup
from tinker_cookbook.stores import TrainingRunStore
from tinker_cookbook.stores.storage import LocalStorage


def test_counts_and_means():
    two_turns = episode(
        turn([1, 2, 3], [4], 0.5, depth=1.0), turn([1, 2, 3, 4, 5], [6, 7, 8], 0.5, depth=3.0)
    )
    one_turn = episode(turn([1, 2], [4, 5], 0.0))
    groups_P = [TrajectoryGroup([two_turns, one_turn], [1.0, 0.0], [{"won": 1}, {"won": 0}])]
    assert compute_trajectory_metrics(groups_P, [[]]) == {
        "env/all/ac_tokens_per_turn": 2.0,
        "env/all/ob_tokens_per_turn": pytest.approx(10 / 3),
        "env/all/turns_per_episode": 1.5,
        "env/all/total_episodes": 2,
        "env/all/total_turns": 3,
        "env/all/total_ac_tokens": 6,
        "env/all/total_ob_tokens": 10,
        "env/all/reward/total": 1.0,
        "env/all/depth": 2.0,
        "env/all/won": 0.5,
        "env/all/by_group/frac_mixed": 1.0,
        "env/all/by_group/frac_all_good": 0.0,
        "env/all/by_group/frac_all_bad": 0.0,
    }


def test_stop_reasons_and_flags_are_rates_over_episodes():
    ended = episode(turn([1], [2]), turn([1, 2, 3], [4], **{"stop/max_turns": 1.0}))
    parsed_late = episode(turn([1], [2], parse_error_masked=1.0), turn([1, 2, 3], [4]))
    quiet = [episode(turn([1], [2])) for _ in range(2)]
    own: list[Any] = [{}, {}, {"zero_reward_on_limit": 1.0}, {}]
    metrics = compute_trajectory_metrics(
        [TrajectoryGroup([ended, parsed_late, *quiet], [0.0] * 4, own)], [[]]
    )
    assert metrics["env/all/stop/max_turns"] == 0.25
    assert metrics["env/all/parse_error_masked"] == 0.25
    assert metrics["env/all/zero_reward_on_limit"] == 0.25


def test_groups_by_what_can_be_learned_from_them():
    groups_P = [group(0.0, 1.0), group(0.5, 0.5), group(0.4, 0.4), group(0.0, 0.0)]
    metrics = compute_trajectory_metrics(groups_P, [[]] * 4)
    assert [metrics[f"env/all/by_group/frac_{kind}"] for kind in ("mixed", "all_good", "all_bad")] == [
        0.25,
        0.25,
        0.5,
    ]


def test_tags_are_told_apart_only_where_they_differ():
    groups_P = [group(0.0, 1.0), group(1.0, 1.0)]
    same = compute_trajectory_metrics(groups_P, [["math"], ["math"]])
    assert {key.split("/")[1] for key in same} == {"all"}
    mixed = compute_trajectory_metrics(groups_P, [["math", "easy"], ["math"]])
    assert mixed["env/easy/reward/total"] == 0.5
    assert mixed["env/math/reward/total"] == mixed["env/all/reward/total"] == 0.75
    with pytest.raises(ValueError, match="zip"):
        compute_trajectory_metrics(groups_P, [["math"]])


def test_no_groups_no_division_by_zero():
    metrics = compute_trajectory_metrics([], [])
    assert set(metrics.values()) == {0.0}


# --- evaluation -------------------------------------------------------------------------------------------


class Groups(RLDataset):
    def __init__(self, *groups: EnvGroupBuilder):
        self.groups = groups

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        return self.groups[index : index + 1]

    def __len__(self) -> int:
        return len(self.groups)


def sampler(service: FakeService | None = None) -> Any:
    return FakeSamplingClient(service or FakeService(), ())


def test_a_data_set_as_a_list():
    first, second = Group([Turns()]), Group([Turns()])
    assert dataset_to_env_group_builders(Groups(first, second)) == [first, second]


def test_a_group_is_right_if_any_member_is_and_wrong_if_it_failed():
    dataset = Problems(
        [Problem(rewards=(0.0, 1.0)), Problem(rewards=(0.0, -1.0))],
        [Problem(rewards=(0.5, 0.5)), Problem(rewards=(float("nan"), 1.0))],
    )
    evaluator = RLTestSetEvaluator(dataset, 4, "held out", strategy=MinViableGroup(max_retries=0))
    metrics = asyncio.run(evaluator(sampler()))
    assert metrics["held out/env/all/reward/total"] == pytest.approx((0 + 1 + 0 - 1 + 0.5 + 0.5) / 6)
    assert metrics["held out/rollout_errors/groups_skipped"] == 1
    result = evaluator.last_result
    assert result is not None
    assert (result.score, result.num_examples, result.num_correct, result.num_errors) == (0.5, 4, 2, 1)


def test_it_samples_and_clamps_as_training_does():
    service = FakeService()
    limited = Problem(rewards=(1.0,), metrics={"stop/max_tokens": 1.0})
    clamps = TerminationRewardPolicy(zero_reward_on_limit=True)
    evaluator = RLTestSetEvaluator(
        Problems([limited]), 4, temperature=0.3, termination=clamps, context_window=5, seed=3
    )
    metrics = asyncio.run(evaluator(sampler(service)))
    assert metrics["test/env/all/reward/total"] == 0.0
    assert metrics["test/env/all/zero_reward_on_limit"] == 1.0
    (asked,) = service.asked
    assert (asked.temperature, asked.max_tokens) == (0.3, 2), "the window leaves room for two"
    asyncio.run(evaluator(sampler(service)))
    assert service.asked[1].seed == asked.seed is not None, "the same weights are asked the same"


def test_the_first_error_is_raised_and_ends_the_others():
    class Waits(Turns):
        async def step(self, action: Any, *, extra: Any = None) -> Any:
            await asyncio.Event().wait()

    waiting = Group([Waits()])
    evaluator = RLTestSetEvaluator(Groups(waiting, Group([Raises()])), 4)
    with pytest.raises(RuntimeError, match="the env is broken"):
        asyncio.run(evaluator(sampler()))
    assert waiting.cleanups == 1


def test_any_policy_can_be_evaluated_and_its_episodes_are_written(tmp_path):
    store = TrainingRunStore(LocalStorage(tmp_path))
    evaluator = RLTestSetEvaluator(Groups(Group([Turns(), Turns(reward=0.0)])), 4)
    export = RolloutSummaryExportConfig(
        split="eval/test", iteration=7, base_name="eval_test", sampling_client_step=5
    )
    metrics = asyncio.run(
        evaluator.eval_token_completer(Policy(), rollout_summary_export=export, store=store)
    )
    assert metrics["test/env/all/reward/total"] == 0.5
    (path,) = tmp_path.glob("iteration_000007/*")
    assert path.name == "eval_test_rollout_summaries.jsonl"
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["split"], row["sampling_client_step"]) for row in written] == [("eval/test", 5)] * 2
    failing = RLTestSetEvaluator(Groups(Group([Raises()])), 4, strategy=MinViableGroup(max_retries=0))
    assert asyncio.run(failing.eval_token_completer(Policy()))["test/rollout_errors/groups_skipped"] == 1
