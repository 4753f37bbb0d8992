"""Train a model in an environment:

    python -m tinker_cookbook.rl.train_cli env=arithmetic

What is not said is chosen by the environment and the model; `--help` lists the environments and all there is to say.
"""

import asyncio
import logging
import sys
from collections.abc import Sequence
from typing import Any

import chz
from tinker.types import LossFnType

from tinker_cookbook import hyperparam_utils, model_info
from tinker_cookbook.cli_utils import LogdirBehavior, check_holds_run_of, check_log_dir, run_folder
from tinker_cookbook.command_line import run_command
from tinker_cookbook.local_models import without_variant
from tinker_cookbook.rl import train
from tinker_cookbook.rl.env_names import dataset_builder_by_name, describe_envs, named_env, read_options
from tinker_cookbook.served_models import ServedModel, served_model
from tinker_cookbook.utils.lr_scheduling import LRSchedule

logger = logging.getLogger(__name__)


@chz.chz
class CLIConfig:
    env: str = chz.field(
        default="arithmetic",
        doc="Environment: a name of the list above, module:Builder, or a file of problems",
    )
    env_options: tuple[str, ...] = chz.field(
        default=(), doc="Fields of the environment's builder: format_coef=0.1,task_options.think=1"
    )
    model_name: str | None = chz.field(
        default=None, doc="Base model, as the server names it; None: the first it has"
    )
    renderer_name: str | None = chz.field(
        default=None, doc="How conversations are written; None: as the model was taught"
    )
    load_checkpoint_path: str | None = chz.field(
        default=None, doc="tinker:// path of weights to start from; None: the base model"
    )
    base_url: str | None = chz.field(
        default=None, doc="Server of the Tinker API; None: TINKER_BASE_URL, else an engine on this machine"
    )

    batch_size: int = chz.field(default=32, doc="Groups of a step, each of one problem")
    group_size: int = chz.field(default=8, doc="Tries at each problem, which are compared with each other")
    max_steps: int | None = chz.field(default=50, doc="Stop after so many steps; None: when the data ends")
    max_tokens: int | None = chz.field(default=None, doc="Of one action; None: what the environment needs")
    temperature: float = chz.field(default=1.0, doc="Of sampling")
    learning_rate: float | None = chz.field(default=None, doc="At its peak; None: a good one for the model")
    lr_schedule: LRSchedule = chz.field(default="linear", doc="How it falls over the steps")
    warmup_steps: int = chz.field(default=0, doc="Steps over which it rises first")
    grad_clip_norm: float = chz.field(default=0.0, doc="Largest norm of a gradient; 0: not limited")
    weight_decay: float = chz.field(
        default=0.0, doc="Share of the weights taken off at each step, times the learning rate"
    )
    lora_rank: int = chz.field(default=32, doc="Rank of the adapter that is trained")
    seed: int = chz.field(
        default=0, doc="Of the adapter's first weights, of problems and of all that is sampled"
    )

    advantage: str = chz.field(
        default="group_mean_std", doc="group_mean, group_mean_std, rloo, length_normalised or reward"
    )
    loss_fn: LossFnType = chz.field(default="ppo", doc="importance_sampling, ppo, cispo, dro, gspo")
    loss_options: tuple[str, ...] = chz.field(default=(), doc="Its options: clip_high_threshold=1.3")
    num_substeps: int | None = chz.field(
        default=None, doc="Optimizer steps of a step; None: one for every 64 episodes, 4 at most"
    )
    kl_penalty_coef: float = chz.field(default=0.0, doc="Price of a nat away from the base model")
    kl_discount_factor: float = chz.field(default=0.0, doc="Share of later departures a token answers for")
    max_importance_weight: float = chz.field(
        default=0.0, doc="Cap on weights that correct for stale or mismatched samples; 0: no such weights"
    )
    remove_constant_reward_groups: bool = chz.field(
        default=True, doc="Leave out groups whose members all got the same reward"
    )
    max_steps_off_policy: int | None = chz.field(
        default=None, doc="Sample ahead of training, this many updates at most; None: wait for each other"
    )
    num_minibatches: int | None = chz.field(
        default=None, doc="Train on so many parts of a batch as they come in; None: on all of it at once"
    )
    rollout_error_tolerance: bool = chz.field(
        default=False, doc="Try an episode that fails again, instead of ending the run"
    )

    test_size: int | None = chz.field(default=None, doc="Held-out problems; None: as the environment has it")
    eval_every: int = chz.field(default=10, doc="Steps between evaluations; 0: none")
    eval_temperature: float | None = chz.field(default=0.0, doc="Of evaluation; None: that of training")
    save_every: int = chz.field(default=20, doc="Steps between checkpoints; 0: none but the final one")
    num_groups_to_log: int = chz.field(default=4, doc="Groups in the report of a step; 0: no report")

    log_path: str | None = chz.field(
        default=None, doc="Folder for all that is written; None: runs/rl-ENV-MODEL, here"
    )
    behavior_if_log_dir_exists: LogdirBehavior = chz.field(
        default="ask", doc="resume, delete, raise or ask: what to do with a run that is there"
    )
    wandb_project: str | None = chz.field(default=None, doc="Project to log to, besides the files")
    wandb_name: str | None = chz.field(default=None, doc="Name of the run there")


def build_config(cli: CLIConfig) -> train.Config:
    """All that is left open decided."""
    env = named_env(cli.env)
    options = read_options(cli.env_options)
    model = served_model(cli.model_name, cli.base_url)
    renderer_name = cli.renderer_name or model_info.get_recommended_renderer_name(model.name)
    settings = _settings(cli, model, renderer_name)
    config = train.Config(
        log_path=cli.log_path or default_log_path(cli.env, model.name),
        model_name=model.name,
        recipe_name="rl",
        renderer_name=renderer_name,
        load_checkpoint_path=cli.load_checkpoint_path,
        base_url=cli.base_url,
        dataset_builder=dataset_builder_by_name(cli.env, settings, options),
        learning_rate=cli.learning_rate or hyperparam_utils.get_lr(model.name),
        num_substeps=cli.num_substeps or default_num_substeps(cli.batch_size * cli.group_size),
        max_tokens=cli.max_tokens or env.max_tokens,
        context_window=model.context,
        kl_reference_config=train.KLReferenceConfig(base_model=model.name) if cli.kl_penalty_coef else None,
        loss_fn_config=read_options(cli.loss_options) or None,
        async_config=_async_config(cli),
        stream_minibatch_config=_stream_config(cli),
        **_same_fields(cli),
    )
    logger.info(
        "%s in %s: %d groups of %d a step, learning rate %.2g, at most %d tokens an action",
        model.name,
        cli.env,
        cli.batch_size,
        cli.group_size,
        config.learning_rate,
        config.max_tokens,
    )
    return config


def default_num_substeps(episodes: int) -> int:
    """Sampling takes most of the time: what it brought is worth more than one optimizer step."""
    return max(1, min(4, episodes // 64))


def default_log_path(env: str, model_name: str) -> str:
    name = env.rstrip("/").split("/")[-1].removesuffix(".jsonl")
    return run_folder("rl", name, without_variant(model_name).split("/")[-1])


_SAME = (
    "temperature lr_schedule warmup_steps grad_clip_norm weight_decay lora_rank seed max_steps advantage loss_fn "
    "kl_penalty_coef kl_discount_factor max_importance_weight remove_constant_reward_groups "
    "rollout_error_tolerance eval_every eval_temperature save_every num_groups_to_log wandb_project wandb_name"
).split()


def _same_fields(cli: CLIConfig) -> dict[str, Any]:
    """Fields that the trainer's config has under the same name."""
    return {name: getattr(cli, name) for name in _SAME}


def _settings(cli: CLIConfig, model: ServedModel, renderer_name: str) -> dict[str, Any]:
    """What builders may have fields for."""
    settings: dict[str, Any] = {
        "model_name_for_tokenizer": model.name,
        "renderer_name": renderer_name,
        "batch_size": cli.batch_size,
        "group_size": cli.group_size,
        "seed": cli.seed,
    }
    if cli.test_size is not None:
        settings["test_size"] = cli.test_size
    if cli.max_steps is not None and cli.max_steps > 0:  # the run's config refuses others by that name
        settings["n_batches"] = cli.max_steps
    return settings


def _async_config(cli: CLIConfig) -> train.AsyncConfig | None:
    if cli.max_steps_off_policy is None:
        return None
    return train.AsyncConfig(max_steps_off_policy=cli.max_steps_off_policy, groups_per_batch=cli.batch_size)


def _stream_config(cli: CLIConfig) -> train.StreamMinibatchConfig | None:
    if cli.num_minibatches is None:
        return None
    return train.StreamMinibatchConfig(groups_per_batch=cli.batch_size, num_minibatches=cli.num_minibatches)


def run(cli: CLIConfig) -> None:
    config = build_config(cli)
    check_holds_run_of(train.Config, config.log_path)
    check_log_dir(config.log_path, cli.behavior_if_log_dir_exists)
    asyncio.run(train.main(config))


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it reports every request
    if "--help" in arguments:
        print(f"{__doc__}\n{describe_envs()}\n")
    return run_command(lambda: run(chz.entrypoint(CLIConfig, argv=arguments)))


if __name__ == "__main__":
    sys.exit(main())
