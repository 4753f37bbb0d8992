"""What the commands of RL recipes have in common: their settings, and the config of a run that comes of them."""

import asyncio
from typing import Any

import chz
from tinker.types import LossFnType

from tinker_cookbook import model_info
from tinker_cookbook.checkpoint_utils import resolve_renderer_name_from_checkpoint_or_default
from tinker_cookbook.cli_utils import LogdirBehavior, check_log_dir
from tinker_cookbook.recipes.launch import TINY_MODEL, example_path, learning_rate_for
from tinker_cookbook.rl import train
from tinker_cookbook.rl.train_cli import default_num_substeps
from tinker_cookbook.rl.types import RLDatasetBuilder
from tinker_cookbook.utils.lr_scheduling import LRSchedule


@chz.chz
class RLCLIConfig:
    """A recipe adds what its environments need, and may have other defaults."""

    model_name: str = chz.field(default=TINY_MODEL, doc="Base model, as the server names it")
    load_checkpoint_path: str | None = chz.field(default=None, doc="tinker:// path of weights to start from")
    renderer_name: str | None = chz.field(
        default=None, doc="None: that of the checkpoint, else as the model was taught"
    )
    lora_rank: int = chz.field(default=32, doc="Rank of the adapter that is trained")
    seed: int = chz.field(default=0, doc="Of the problems, of sampling and of the adapter's first weights")

    group_size: int = chz.field(default=8, doc="Tries at each problem, whose rewards are compared")
    groups_per_batch: int = chz.field(default=32, doc="Problems in a batch")
    max_tokens: int | None = chz.field(default=None, doc="Most tokens of a reply; None: as the data needs")
    temperature: float = chz.field(default=1.0, doc="Of sampling")

    learning_rate: float | None = chz.field(default=None, doc="At its peak; None: hyperparam_utils.get_lr")
    lr_schedule: LRSchedule = chz.field(default="linear", doc="How it falls over the steps")
    advantage: str = chz.field(
        default="group_mean_std", doc="Estimator of advantages, by its name in rl.advantages"
    )
    loss_fn: LossFnType = chz.field(default="ppo", doc="Any loss the server has")
    loss_fn_config: dict[str, Any] | None = chz.field(default=None, doc="Its options")
    num_substeps: int | None = chz.field(
        default=None, doc="Optimizer steps of a batch; None: one for every 64 episodes, 4 at most"
    )
    kl_penalty_coef: float = chz.field(default=0.0, doc="Price of a nat away from the base model")
    kl_discount_factor: float = chz.field(
        default=0.0, doc="Share of later departures that a token answers for"
    )
    compute_post_kl: bool = chz.field(default=False, doc="Measure how far each update moves the policy")
    remove_constant_reward_groups: bool = chz.field(
        default=True, doc="Leave out groups whose members all got the same reward"
    )
    max_steps_off_policy: int | None = chz.field(
        default=None, doc="Sample ahead of training by so many updates; None: don't"
    )
    num_minibatches: int | None = chz.field(
        default=None, doc="Train on so many parts of a batch as they come in; None: on the whole of it"
    )
    max_steps: int | None = chz.field(default=None, doc="Stop after so many steps; None: when the data ends")

    eval_temperature: float | None = chz.field(default=0.0, doc="Of evaluation; None: that of training")
    eval_every: int = chz.field(default=20, doc="Steps between evaluations; 0: none")
    save_every: int = chz.field(default=20, doc="Steps between checkpoints; 0: the final one alone")
    base_url: str | None = chz.field(
        default=None, doc="Server; None: TINKER_BASE_URL, else one on this machine"
    )
    log_path: str | None = chz.field(default=None, doc="Folder of the run; None: named after its settings")
    behavior_if_log_dir_exists: LogdirBehavior = chz.field(default="ask", doc="ask, resume, delete or raise")
    wandb_project: str | None = chz.field(default=None, doc="Project to log to, besides the files")
    wandb_name: str | None = chz.field(default=None, doc="Name of the run there")


def renderer_for(cli: RLCLIConfig, *, short_replies: bool = False) -> str:
    """With `short_replies`, the one that does not think if the model has one: thinking would fill all the tokens."""
    named = cli.renderer_name
    if named is None and short_replies and cli.load_checkpoint_path is None:
        known = model_info.get_recommended_renderer_names(cli.model_name)
        named = next((name for name in known if name.endswith("_disable_thinking")), None)
    return resolve_renderer_name_from_checkpoint_or_default(
        model_name=cli.model_name,
        explicit_renderer_name=named,
        load_checkpoint_path=cli.load_checkpoint_path,
        base_url=cli.base_url,
    )


def rl_config(
    cli: RLCLIConfig,
    *,
    recipe: str,
    data_name: str,
    dataset_builder: RLDatasetBuilder,
    renderer_name: str,
    max_tokens: int,
) -> train.Config:
    learning_rate = learning_rate_for(cli.model_name, cli.learning_rate)
    name = (
        data_name,
        cli.model_name,
        f"{cli.lora_rank}rank",
        f"{learning_rate:g}lr",
        f"{cli.group_size}group",
        f"{cli.groups_per_batch}batch",
        f"seed{cli.seed}",
    )
    reference = train.KLReferenceConfig(
        base_model=cli.model_name
    )  # the penalty is on leaving where we started
    return train.Config(
        log_path=cli.log_path or example_path(recipe, *name),
        model_name=cli.model_name,
        recipe_name=recipe,
        renderer_name=renderer_name,
        load_checkpoint_path=cli.load_checkpoint_path,
        dataset_builder=dataset_builder,
        lora_rank=cli.lora_rank,
        seed=cli.seed,
        max_tokens=max_tokens,
        temperature=cli.temperature,
        learning_rate=learning_rate,
        lr_schedule=cli.lr_schedule,
        advantage=cli.advantage,
        loss_fn=cli.loss_fn,
        loss_fn_config=cli.loss_fn_config,
        num_substeps=cli.num_substeps or default_num_substeps(cli.groups_per_batch * cli.group_size),
        kl_penalty_coef=cli.kl_penalty_coef,
        kl_discount_factor=cli.kl_discount_factor,
        kl_reference_config=reference if cli.kl_penalty_coef > 0 else None,
        compute_post_kl=cli.compute_post_kl,
        remove_constant_reward_groups=cli.remove_constant_reward_groups,
        async_config=_async_config(cli),
        stream_minibatch_config=_stream_config(cli),
        max_steps=cli.max_steps,
        eval_temperature=cli.eval_temperature,
        eval_every=cli.eval_every,
        save_every=cli.save_every,
        base_url=cli.base_url,
        wandb_project=cli.wandb_project,
        wandb_name=cli.wandb_name,
    )


def _async_config(cli: RLCLIConfig) -> train.AsyncConfig | None:
    if cli.max_steps_off_policy is None:
        return None
    return train.AsyncConfig(
        max_steps_off_policy=cli.max_steps_off_policy, groups_per_batch=cli.groups_per_batch
    )


def _stream_config(cli: RLCLIConfig) -> train.StreamMinibatchConfig | None:
    if cli.num_minibatches is None:
        return None
    return train.StreamMinibatchConfig(
        groups_per_batch=cli.groups_per_batch, num_minibatches=cli.num_minibatches
    )


def run_training(cli: RLCLIConfig, config: train.Config) -> None:
    check_log_dir(config.log_path, cli.behavior_if_log_dir_exists)
    asyncio.run(train.main(config))
