"""What can be set about a run of reinforcement learning."""

from typing import Any

import chz
from tinker.types import LossFnType

from tinker_cookbook.eval.evaluators import SamplingClientEvaluatorBuilder
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.rl.advantages import get_estimator
from tinker_cookbook.rl.rollout_limits import TerminationRewardPolicy
from tinker_cookbook.rl.rollout_presets import (
    default_rollout_config_for_model,
    default_rollout_strategy_for_model,
)
from tinker_cookbook.rl.rollout_strategy import RolloutStrategy, rollout_strategy_from_config
from tinker_cookbook.rl.types import RLDatasetBuilder
from tinker_cookbook.run_config import RunConfig
from tinker_cookbook.utils.lr_scheduling import LRSchedule


@chz.chz
class KLReferenceConfig:
    """The policy that the trained one is not to leave too far."""

    base_model: str
    load_checkpoint_path: str | None = chz.field(
        default=None, doc="tinker:// path of weights for sampling; None: the base model itself"
    )


@chz.chz
class StreamMinibatchConfig:
    """Training on the first groups of a batch while its others are still being sampled."""

    groups_per_batch: int
    num_minibatches: int = chz.field(doc="Parts of a substep's groups, each trained on when it is complete")


@chz.chz
class AsyncConfig:
    """Sampling ahead of training: nobody waits for the slowest episode.

    A step is then so many groups and no batch of the data set. How many steps there are is a guess from the batches
    that were read, so progress and a falling learning rate are approximate; the run ends with the data, or max_steps.
    """

    max_steps_off_policy: int = chz.field(doc="Updates that may have been made since a group was sampled")
    groups_per_batch: int = chz.field(doc="Groups of an update")
    dynamic_sampling: bool = chz.field(
        default=True, doc="Sample others in place of groups that nothing can be learned from"
    )


@chz.chz
class Config(RunConfig):
    """A run of reinforcement learning: the fields of every run, and these."""

    dataset_builder: RLDatasetBuilder = chz.field(doc="The environments that are learned in")
    max_tokens: int = chz.field(doc="Most tokens of one action")
    temperature: float = chz.field(default=1.0, doc="Of sampling; other than 1, sampler and trainer differ")
    eval_temperature: float | None = chz.field(default=None, doc="Of evaluation; None: that of training")
    context_window: int | None = chz.field(
        default=None, doc="Most tokens of a prompt and its action; None: what the server says of the model"
    )

    learning_rate: float = chz.field(doc="At its peak")
    lr_schedule: LRSchedule = chz.field(default="constant", doc="How it falls over the steps")
    warmup_steps: int = chz.field(default=0, doc="Steps over which it rises first")
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95
    adam_eps: float = 1e-8
    weight_decay: float = 0.0
    grad_clip_norm: float = chz.field(default=0.0, doc="Largest norm of a gradient; 0: not limited")

    advantage: str = chz.field(
        default="group_mean", doc="Estimator of advantages; rl.advantages has them all"
    )
    loss_fn: LossFnType = chz.field(default="importance_sampling", doc="Any loss the server has")
    loss_fn_config: dict[str, Any] | None = chz.field(default=None, doc="Its options")
    num_substeps: int = chz.field(default=1, doc="Optimizer steps that the data of a batch is split over")
    kl_penalty_coef: float = chz.field(default=0.0, doc="Price of a nat away from the reference")
    kl_discount_factor: float = chz.field(
        default=0.0, doc="Share of later departures that a token answers for"
    )
    kl_reference_config: KLReferenceConfig | None = chz.field(default=None, doc="Needed for the penalty")
    entropy_coef: float = chz.field(
        default=0.0, doc="Worth of a nat of surprise in what is sampled, which keeps the policy trying"
    )
    max_importance_weight: float = chz.field(
        default=0.0,
        doc="Weight each token by how much likelier it is now than when it was sampled, this at most; 0: don't",
    )
    remove_constant_reward_groups: bool = chz.field(
        default=False, doc="Leave out groups whose members all got the same reward"
    )
    compute_post_kl: bool = chz.field(default=False, doc="Measure how far each update moves the policy")

    rollout_error_tolerance: bool | RolloutStrategy | None = chz.field(
        default=None, doc="False: an episode that fails ends the run; True: it is tried again; or a strategy"
    )
    termination: TerminationRewardPolicy | None = chz.field(
        default=None, doc="What reaching a limit costs; None: as the model's preset says"
    )
    group_timeout_seconds: float = chz.field(
        default=3600.0, doc="A group that takes longer has failed; 0: no limit"
    )
    async_config: AsyncConfig | None = chz.field(default=None, doc="To sample ahead of training")
    stream_minibatch_config: StreamMinibatchConfig | None = chz.field(
        default=None, doc="To train on parts of a batch as they come in"
    )

    evaluator_builders: list[SamplingClientEvaluatorBuilder] = chz.field(default_factory=list)
    num_groups_to_log: int = chz.field(default=4, doc="Groups in the report of a step; 0: no report")
    rollout_json_export: bool = chz.field(default=True, doc="Write a summary of every episode")

    def effective_termination(self) -> TerminationRewardPolicy | None:
        if self.termination is not None:
            return self.termination
        return default_rollout_config_for_model(self.model_name).termination

    def effective_rollout_strategy(self) -> RolloutStrategy:
        if self.rollout_error_tolerance is None:
            return default_rollout_strategy_for_model(self.model_name)
        return rollout_strategy_from_config(self.rollout_error_tolerance)

    @property
    def max_staleness(self) -> int:
        """Updates that may lie between sampling and training on it."""
        return self.async_config.max_steps_off_policy if self.async_config else 0

    @property
    def num_minibatches(self) -> int:
        return self.stream_minibatch_config.num_minibatches if self.stream_minibatch_config else 1

    @chz.validate
    def _check_rl(self) -> None:
        get_estimator(self.advantage)
        if self.kl_penalty_coef > 0 and self.kl_reference_config is None:
            raise ConfigurationError(
                "kl_penalty_coef needs a reference to keep near to: set kl_reference_config.base_model="
                f"{self.model_name}, or kl_penalty_coef=0"
            )
        at_least = {"max_tokens": 1, "num_substeps": 1, "warmup_steps": 0, "num_groups_to_log": 0}
        at_least |= {
            "group_timeout_seconds": 0,
            "max_importance_weight": 0,
            "kl_penalty_coef": 0,
            "entropy_coef": 0,
        }
        for name, least in at_least.items():
            if getattr(self, name) < least:
                raise ConfigurationError(f"{name}={getattr(self, name)} must be at least {least}")
        if self.async_config is not None:
            _check_counts(
                "async_config", self.async_config, {"max_steps_off_policy": 0, "groups_per_batch": 1}
            )
        if self.stream_minibatch_config is not None:
            self._check_stream(self.stream_minibatch_config)

    def _check_stream(self, stream: StreamMinibatchConfig) -> None:
        _check_counts("stream_minibatch_config", stream, {"num_minibatches": 1, "groups_per_batch": 1})
        if self.async_config is not None and self.async_config.groups_per_batch != stream.groups_per_batch:
            raise ConfigurationError(
                f"async_config.groups_per_batch={self.async_config.groups_per_batch} and "
                f"stream_minibatch_config.groups_per_batch={stream.groups_per_batch} must be the same"
            )
        parts = self.num_substeps * stream.num_minibatches
        if stream.groups_per_batch % parts:
            raise ConfigurationError(
                f"stream_minibatch_config.groups_per_batch={stream.groups_per_batch} must be divisible by "
                f"num_substeps × num_minibatches = {parts}"
            )


def _check_counts(name: str, config: Any, at_least: dict[str, int]) -> None:
    for field, least in at_least.items():
        if getattr(config, field) < least:
            raise ConfigurationError(f"{name}.{field}={getattr(config, field)} must be at least {least}")
