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

from tinker_cookbook import hyperparam_utils
from tinker_cookbook.cli_utils import check_holds_run_of, check_log_dir, data_name, run_folder
from tinker_cookbook.command_line import run_command
from tinker_cookbook.command_settings import renderer_for
from tinker_cookbook.local_models import without_variant
from tinker_cookbook.rl import train
from tinker_cookbook.rl.cli_settings import RLSettings, trainer_fields
from tinker_cookbook.rl.env_names import dataset_builder_by_name, describe_envs, named_env, read_options
from tinker_cookbook.served_models import ServedModel, served_model

logger = logging.getLogger(__name__)


@chz.chz
class _Choice:
    """What is trained, and where: listed first."""

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
    batch_size: int = chz.field(default=32, doc="Groups of a step, each of one problem")


@chz.chz
class CLIConfig(RLSettings, _Choice):
    max_steps: int | None = chz.field(default=44, doc="Stop after so many steps; None: when the data ends")
    log_path: str | None = chz.field(
        default=None, doc="Folder for all that is written; None: runs/rl-ENV-MODEL, here"
    )
    loss_options: tuple[str, ...] = chz.field(default=(), doc="Options of loss_fn: clip_high_threshold=1.3")
    test_size: int | None = chz.field(default=None, doc="Held-out problems; None: as the environment has it")


def build_config(cli: CLIConfig) -> train.Config:
    """All that is left open decided."""
    env = named_env(cli.env)
    options = read_options(cli.env_options)
    model = served_model(cli.model_name, cli.base_url)
    renderer_name = renderer_for(cli, model.name)
    settings = _settings(cli, model, renderer_name)
    config = train.Config(
        log_path=cli.log_path or default_log_path(cli.env, model.name),
        recipe_name="rl",
        renderer_name=renderer_name,
        dataset_builder=dataset_builder_by_name(cli.env, settings, options),
        learning_rate=cli.learning_rate or hyperparam_utils.get_lr(model.name),
        max_tokens=cli.max_tokens or env.max_tokens,
        context_window=model.context,
        loss_fn_config=read_options(cli.loss_options) or None,
        **trainer_fields(cli, model.name, cli.batch_size),
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


def default_log_path(env: str, model_name: str) -> str:
    return run_folder("rl", data_name(env), without_variant(model_name).split("/")[-1])


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
        settings["n_batches"] = cli.max_steps * _batches_for_a_step(cli)
    return settings


def _batches_for_a_step(cli: CLIConfig) -> int:
    """Dynamic sampling makes up for groups that are left out with others, and at the end nearly all are."""
    return 4 if cli.max_steps_off_policy is not None and cli.dynamic_sampling else 1


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
