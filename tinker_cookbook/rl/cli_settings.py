"""What commands that train by reinforcement have in common: their settings, and what of a run's config follows."""

from typing import Any

import chz
from tinker.types import LossFnType

from tinker_cookbook.command_settings import CommandSettings, handed_on
from tinker_cookbook.rl import train


@chz.chz
class RLSettings(CommandSettings):
    """A command adds its model and its environment, and may have other defaults."""

    group_size: int = chz.field(default=8, doc="Tries at each problem, which are compared with each other")
    max_tokens: int | None = chz.field(default=None, doc="Of one action; None: what the environment needs")
    temperature: float = chz.field(default=1.0, doc="Of sampling")

    advantage: str = chz.field(
        default="group_mean_std", doc="group_mean, group_mean_std, rloo, length_normalised or reward"
    )
    loss_fn: LossFnType = chz.field(default="ppo", doc="importance_sampling, ppo, cispo, dro, gspo")
    num_substeps: int | None = chz.field(
        default=None, doc="Optimizer steps of a step; None: one for every 64 episodes, 4 at most"
    )
    kl_penalty_coef: float = chz.field(default=0.0, doc="Price of a nat away from the base model")
    kl_discount_factor: float = chz.field(default=0.0, doc="Share of later departures a token answers for")
    entropy_coef: float = chz.field(default=0.0, doc="Worth of a nat of surprise; keeps the policy trying")
    compute_post_kl: bool = chz.field(default=False, doc="Measure how far each update moves the policy")
    max_importance_weight: float = chz.field(
        default=0.0, doc="Cap on weights that correct for stale or mismatched samples; 0: no such weights"
    )
    remove_constant_reward_groups: bool = chz.field(
        default=True, doc="Leave out groups whose members all got the same reward"
    )
    max_steps_off_policy: int | None = chz.field(
        default=None, doc="Sample ahead of training, this many updates at most; None: wait for each other"
    )
    dynamic_sampling: bool = chz.field(
        default=False, doc="Sampling ahead: others in place of groups that are left out, which takes longer"
    )
    num_minibatches: int | None = chz.field(
        default=None, doc="Train on so many parts of a batch as they come in; None: on all of it at once"
    )
    rollout_error_tolerance: bool = chz.field(
        default=False, doc="Try an episode that fails again, instead of ending the run"
    )

    eval_temperature: float | None = chz.field(default=None, doc="Of evaluation; None: that of training")
    num_groups_to_log: int = chz.field(default=4, doc="Groups in the report of a step; 0: no report")


SAME = tuple(
    "temperature advantage loss_fn kl_penalty_coef kl_discount_factor entropy_coef compute_post_kl "
    "max_importance_weight remove_constant_reward_groups rollout_error_tolerance eval_temperature "
    "num_groups_to_log".split()
)


def trainer_fields(cli: RLSettings, model_name: str, groups_per_batch: int) -> dict[str, Any]:
    """Fields of `train.Config` that follow from the settings; a KL penalty is on leaving the base model."""
    off_policy, parts = cli.max_steps_off_policy, cli.num_minibatches
    return {
        **handed_on(cli, *SAME),
        "model_name": model_name,
        "num_substeps": cli.num_substeps or default_num_substeps(groups_per_batch * cli.group_size),
        "kl_reference_config": train.KLReferenceConfig(base_model=model_name)
        if cli.kl_penalty_coef
        else None,
        "async_config": None
        if off_policy is None
        else train.AsyncConfig(
            max_steps_off_policy=off_policy,
            groups_per_batch=groups_per_batch,
            dynamic_sampling=cli.dynamic_sampling,
        ),
        "stream_minibatch_config": None
        if parts is None
        else train.StreamMinibatchConfig(groups_per_batch=groups_per_batch, num_minibatches=parts),
    }


def default_num_substeps(episodes: int) -> int:
    """Sampling takes most of the time: what it brought is worth more than one optimizer step."""
    return max(1, min(4, episodes // 64))
