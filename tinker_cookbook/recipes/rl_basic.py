"""Reinforcement learning with the cookbook's trainer, in the fewest lines: a config, and main.

python -m tinker_cookbook.recipes.rl_basic                                # the tiny model, some minutes, no download
python -m tinker_cookbook.recipes.rl_basic model_name=Qwen/Qwen3.5-9B-Base      # GSM8K

Every field of the config can be given on the command line, as dataset_builder.group_size=8; --help lists them.
"""

import asyncio
import sys
from typing import Any

import chz
from chz.blueprint import exit_on_entrypoint_error

from tinker_cookbook import cli_utils, model_info
from tinker_cookbook.command_line import run_command
from tinker_cookbook.recipes.launch import TINY_MODEL, example_path
from tinker_cookbook.recipes.math_rl.math_env import Gsm8kDatasetBuilder
from tinker_cookbook.rl import train
from tinker_cookbook.rl.task_env import TaskRLDatasetBuilder

# An environment of your own: recipes/custom_env shows how.
_SUMS: dict[str, Any] = {
    "dataset_builder": TaskRLDatasetBuilder,
    "dataset_builder.task": "arithmetic",
    "dataset_builder.task_options": {"think": 1.0, "one_digit": 0.0, "largest": 30, "operations": "+"},
    "dataset_builder.batch_size": 32,
    "dataset_builder.group_size": 8,
    "dataset_builder.n_batches": 44,
}
_GSM8K: dict[str, Any] = {
    "dataset_builder": Gsm8kDatasetBuilder,
    "dataset_builder.batch_size": 128,
    "dataset_builder.group_size": 16,
}


@chz.chz
class Config(train.Config):
    behavior_if_log_dir_exists: cli_utils.LogdirBehavior = chz.field(
        default="ask", doc="What to do with a log_path that has a run in it: ask, resume, delete or raise"
    )


def build_config_blueprint(model_name: str = TINY_MODEL) -> chz.Blueprint[Config]:
    """What the command line does not say. The model decides: the tiny one learns sums, others GSM8K."""
    is_tiny = model_name == TINY_MODEL
    renderer_name = model_info.get_recommended_renderer_name(model_name)
    data = _SUMS if is_tiny else _GSM8K
    return chz.Blueprint(Config).apply(
        {
            "log_path": example_path("rl_basic", model_name),
            "model_name": model_name,
            "recipe_name": "rl_basic",
            "renderer_name": renderer_name,
            **data,
            "dataset_builder.model_name_for_tokenizer": model_name,
            "dataset_builder.renderer_name": renderer_name,
            "learning_rate": 3e-3 if is_tiny else 4e-5,
            "lr_schedule": "linear" if is_tiny else "constant",
            "advantage": "group_mean_std" if is_tiny else "group_mean",
            "loss_fn": "ppo" if is_tiny else "importance_sampling",
            "num_substeps": 4 if is_tiny else 1,
            "max_tokens": 64 if is_tiny else 256,
            "eval_every": 10 if is_tiny else 0,
        }
    )


def main(config: Config) -> None:
    cli_utils.check_log_dir(config.log_path, config.behavior_if_log_dir_exists)
    asyncio.run(train.main(config))


@exit_on_entrypoint_error  # of the command line: what is wrong with it, in place of a traceback
def main_from_argv(argv: list[str]) -> None:
    """The renderer and the tokenizer follow the model, so its name is read before the rest."""
    model_name = cli_utils.model_name_from_argv(argv, TINY_MODEL)
    main(build_config_blueprint(model_name).make_from_argv(argv))


if __name__ == "__main__":
    sys.exit(run_command(lambda: main_from_argv(sys.argv[1:])))
