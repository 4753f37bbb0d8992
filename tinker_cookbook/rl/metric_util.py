"""Figures about episodes, and the evaluation of a policy on a test set of environments.

Suffixes: `_P` one per group, `_G` one per member of a group.
"""

import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import tinker

from tinker_cookbook.completers import TokenCompleter
from tinker_cookbook.eval.benchmarks._types import BenchmarkResult
from tinker_cookbook.eval.evaluators import RecordingEvaluator
from tinker_cookbook.exceptions import AllTrajectoriesFailedError
from tinker_cookbook.rl.rollout_limits import TerminationRewardPolicy
from tinker_cookbook.rl.rollout_logging import (
    RolloutSummaryExportConfig,
    RolloutSummaryGroup,
    serialize_rollout_summaries_from_groups,
)
from tinker_cookbook.rl.rollout_strategy import FailFast, RolloutStrategy, errors_of_group
from tinker_cookbook.rl.rollouts import (
    FailedGroup,
    RolloutErrorCounter,
    RolloutRequest,
    do_group_rollout,
    run_group_rollout,
)
from tinker_cookbook.rl.types import (
    PARSE_ERROR_MASKED_METRIC_KEY,
    STOP_METRIC_PREFIX,
    EnvGroupBuilder,
    Metrics,
    RLDataset,
    Trajectory,
    TrajectoryGroup,
)
from tinker_cookbook.stores import TrainingRunStore
from tinker_cookbook.utils import logtree
from tinker_cookbook.utils.concurrency import gather_or_cancel
from tinker_cookbook.utils.misc_utils import all_same, dict_mean, safezip
from tinker_cookbook.utils.seeds import derive_seed

logger = logging.getLogger(__name__)

GOOD_REWARD = 0.5  # a group whose members all have this reward, at least, is all good

_FLAGS = (
    "parse_error",
    "max_tokens_reached",
    "context_overflow",
    "zero_reward_on_limit",
    "num_truncations_max_turn_tokens",
    PARSE_ERROR_MASKED_METRIC_KEY,
)
"""Like `stop/...`: written only where they happened, and of interest as how often they do."""


# --- figures ----------------------------------------------------------------------------------------------


def compute_trajectory_metrics(
    trajectory_groups_P: list[TrajectoryGroup], taglist_P: list[list[str]]
) -> dict[str, float]:
    """`env/all/...`, and `env/<tag>/...` if there is a tag that not all groups have."""
    metrics = _prefixed("env/all", _figures(trajectory_groups_P))
    tags = sorted({tag for tags in taglist_P for tag in tags})
    by_tag = {
        tag: [group for group, tags in safezip(trajectory_groups_P, taglist_P) if tag in tags] for tag in tags
    }
    if any(len(groups) < len(trajectory_groups_P) for groups in by_tag.values()):
        for tag, groups in by_tag.items():
            metrics |= _prefixed(f"env/{tag}", _figures(groups))
    return metrics


def _figures(groups_P: Sequence[TrajectoryGroup]) -> dict[str, float]:
    trajectories = [trajectory for group in groups_P for trajectory in group.trajectories_G]
    turns = [transition for trajectory in trajectories for transition in trajectory.transitions]
    rewards = [reward for group in groups_P for reward in group.get_total_rewards()]
    own_metrics = [metrics for group in groups_P for metrics in group.metrics_G]
    action_tokens = sum(len(turn.ac.tokens) for turn in turns)
    observation_tokens = sum(turn.ob.length for turn in turns)
    return {
        "ac_tokens_per_turn": _ratio(action_tokens, len(turns)),
        "ob_tokens_per_turn": _ratio(observation_tokens, len(turns)),
        "turns_per_episode": _ratio(len(turns), len(trajectories)),
        "total_episodes": len(trajectories),
        "total_turns": len(turns),
        "total_ac_tokens": action_tokens,
        "total_ob_tokens": observation_tokens,
        "reward/total": _ratio(sum(rewards), len(rewards)),
        **dict_mean(
            [_without_rates(metrics) for metrics in [*(turn.metrics for turn in turns), *own_metrics]]
        ),
        **_rates(trajectories, own_metrics),
        **_by_group(groups_P),
    }


def _is_rate(key: str) -> bool:
    return key.startswith(STOP_METRIC_PREFIX) or key in _FLAGS


def _without_rates(metrics: Metrics) -> Metrics:
    return {key: value for key, value in metrics.items() if not _is_rate(key)}


def _rates(trajectories: Sequence[Trajectory], own_metrics: Sequence[Metrics]) -> dict[str, float]:
    """Per episode, also over those without the metric."""
    totals: dict[str, float] = {}
    for trajectory, own in safezip(trajectories, own_metrics):
        for metrics in [*(transition.metrics for transition in trajectory.transitions), own]:
            for key in filter(_is_rate, metrics):
                totals[key] = totals.get(key, 0.0) + metrics[key]
    return {key: total / len(trajectories) for key, total in totals.items()}


def _by_group(groups_P: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Groups of mixed rewards are those something can be learned from."""
    good = bad = 0
    for group in groups_P:
        rewards_G = group.get_total_rewards()
        if all_same(rewards_G):
            good += rewards_G[0] >= GOOD_REWARD
            bad += rewards_G[0] < GOOD_REWARD
    counts = {"frac_mixed": len(groups_P) - good - bad, "frac_all_good": good, "frac_all_bad": bad}
    return {f"by_group/{name}": _ratio(count, len(groups_P)) for name, count in counts.items()}


def _ratio(part: float, whole: int) -> float:
    return part / whole if whole else 0.0


def _prefixed(prefix: str, metrics: dict[str, float]) -> dict[str, float]:
    return {f"{prefix}/{key}": value for key, value in metrics.items()}


# --- evaluation -------------------------------------------------------------------------------------------


def dataset_to_env_group_builders(dataset: RLDataset) -> list[EnvGroupBuilder]:
    """The groups of all batches, in order."""
    return list(itertools.chain.from_iterable(dataset.get_batch(index) for index in range(len(dataset))))


class RLTestSetEvaluator(RecordingEvaluator):
    """Rolls out every group of a data set, with the limits and the temperature of training unless told otherwise."""

    def __init__(
        self,
        dataset: RLDataset,
        max_tokens: int,
        name: str = "test",
        num_groups_to_log: int = 4,
        strategy: RolloutStrategy | None = None,
        *,
        temperature: float = 1.0,
        termination: TerminationRewardPolicy | None = None,
        context_window: int | None = None,
        seed: int | None = None,
        group_timeout_seconds: float = 0.0,
    ):
        """With a `seed`, every evaluation of the same weights samples the same."""
        self.name = name
        self.last_result: BenchmarkResult | None = None
        self._builders_P = dataset_to_env_group_builders(dataset)
        self._max_tokens = max_tokens
        self._num_groups_to_log = num_groups_to_log
        self._strategy = strategy or FailFast()
        self._temperature = temperature
        self._termination = termination
        self._context_window = context_window
        self._seed = seed
        self._group_timeout_seconds = group_timeout_seconds

    async def __call__(
        self,
        sampling_client: tinker.SamplingClient,
        *,
        rollout_summary_export: RolloutSummaryExportConfig | None = None,
        store: TrainingRunStore | None = None,
    ) -> dict[str, float]:
        async def roll_out(index: int, builder: EnvGroupBuilder) -> TrajectoryGroup | FailedGroup:
            request = RolloutRequest(
                sampling_client=sampling_client,
                env_group_builder=builder,
                max_tokens=self._max_tokens,
                temperature=self._temperature,
                seed=None if self._seed is None else derive_seed(self._seed, self.name, index),
                context_window=self._context_window,
                strategy=self._strategy,
                termination=self._termination,
                enable_logging=index < self._num_groups_to_log,
                timeout_seconds=self._group_timeout_seconds,
                name=f"group {index} of the {self.name} set",
            )
            return await run_group_rollout(request)

        return await self._evaluate(roll_out, rollout_summary_export, store)

    async def eval_token_completer(
        self,
        policy: TokenCompleter,
        *,
        rollout_summary_export: RolloutSummaryExportConfig | None = None,
        store: TrainingRunStore | None = None,
    ) -> dict[str, float]:
        """The same for any policy."""

        async def roll_out(index: int, builder: EnvGroupBuilder) -> TrajectoryGroup | FailedGroup:
            with logtree.optional_enable_logging(index < self._num_groups_to_log):
                try:
                    return await do_group_rollout(builder, policy, self._strategy, self._termination)
                except AllTrajectoriesFailedError as error:
                    return FailedGroup(errors_of_group(error))

        return await self._evaluate(roll_out, rollout_summary_export, store)

    async def evaluate_step(
        self, sampling_client: tinker.SamplingClient, step: int, label: str, store: TrainingRunStore
    ) -> dict[str, float]:
        export = RolloutSummaryExportConfig(
            split=f"eval/{label}", iteration=step, base_name=f"eval_{label}", sampling_client_step=step
        )
        return await self(sampling_client, rollout_summary_export=export, store=store)

    async def _evaluate(
        self,
        roll_out: Callable[[int, EnvGroupBuilder], Coroutine[Any, Any, TrajectoryGroup | FailedGroup]],
        export: RolloutSummaryExportConfig | None,
        store: TrainingRunStore | None,
    ) -> dict[str, float]:
        started = time.perf_counter()
        results_P = await gather_or_cancel(
            roll_out(index, builder) for index, builder in enumerate(self._builders_P)
        )
        counter = RolloutErrorCounter()
        for result in results_P:
            counter.ingest(result)
        done_P = [
            RolloutSummaryGroup(
                result, builder.logging_tags(), export.sampling_client_step if export else None
            )
            for result, builder in safezip(results_P, self._builders_P)
            if isinstance(result, TrajectoryGroup)
        ]
        if export is not None and store is not None:
            rows = serialize_rollout_summaries_from_groups(
                split=export.split, iteration=export.iteration, groups_P=done_P
            )
            store.write_rollouts(export.iteration, rows, base_name=export.base_name)
        groups_P = [each.trajectory_group for each in done_P]
        metrics = compute_trajectory_metrics(groups_P, [each.tags for each in done_P]) | counter.get_metrics()
        self.last_result = self._result(groups_P, metrics, time.perf_counter() - started)
        return _prefixed(self.name, metrics)

    def _result(
        self, groups_P: Sequence[TrajectoryGroup], metrics: dict[str, float], seconds: float
    ) -> BenchmarkResult:
        """Counts groups: one is right if any of its members is rewarded, and wrong if it failed."""
        correct = sum(any(reward > 0 for reward in group.get_total_rewards()) for group in groups_P)
        return BenchmarkResult(
            name=self.name,
            score=_ratio(correct, len(self._builders_P)),
            num_examples=len(self._builders_P),
            num_correct=correct,
            num_errors=len(self._builders_P) - len(groups_P),
            metrics=dict(metrics),
            time_seconds=seconds,
        )
