"""What the commands of RL recipes have in common: their settings, and the config of a run that comes of them."""

import asyncio
from typing import Any

import chz

from tinker_cookbook import model_info
from tinker_cookbook.checkpoint_utils import resolve_renderer_name_from_checkpoint_or_default
from tinker_cookbook.cli_utils import check_log_dir
from tinker_cookbook.recipes.launch import TINY_MODEL, example_path, learning_rate_for
from tinker_cookbook.rl import train
from tinker_cookbook.rl.cli_settings import RLSettings, trainer_fields
from tinker_cookbook.rl.types import RLDatasetBuilder


@chz.chz
class RLCLIConfig(RLSettings):
    """A recipe adds what its environments need, and may have other defaults."""

    model_name: str = chz.field(default=TINY_MODEL, doc="Base model, as the server names it")
    groups_per_batch: int = chz.field(default=32, doc="Problems in a batch")
    loss_fn_config: dict[str, Any] | None = chz.field(default=None, doc="Options of loss_fn")
    eval_every: int = chz.field(default=20, doc="Steps between evaluations; 0: none")


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
    return train.Config(
        log_path=cli.log_path or example_path(recipe, *name),
        recipe_name=recipe,
        renderer_name=renderer_name,
        dataset_builder=dataset_builder,
        max_tokens=max_tokens,
        learning_rate=learning_rate,
        loss_fn_config=cli.loss_fn_config,
        **trainer_fields(cli, cli.model_name, cli.groups_per_batch),
    )


def run_training(cli: RLCLIConfig, config: train.Config) -> None:
    check_log_dir(config.log_path, cli.behavior_if_log_dir_exists)
    asyncio.run(train.main(config))
