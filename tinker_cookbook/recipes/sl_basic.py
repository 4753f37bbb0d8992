"""Supervised fine-tuning with the cookbook's trainer, in the fewest lines: a config, and main.

python -m tinker_cookbook.recipes.sl_basic                                # the tiny model, a minute, no download
python -m tinker_cookbook.recipes.sl_basic model_name=Qwen/Qwen3.5-9B-Base learning_rate=1e-4

Every field of the config can be given on the command line, as dataset_builder.common_config.batch_size=8; --help lists
them.
"""

import asyncio
import sys

import chz
from chz.blueprint import exit_on_entrypoint_error

from tinker_cookbook import cli_utils, model_info
from tinker_cookbook.command_line import run_command
from tinker_cookbook.recipes.chat_sl.chat_datasets import KnightBuilder, NoRobotsBuilder
from tinker_cookbook.recipes.knights import KnightEvaluatorBuilder
from tinker_cookbook.recipes.launch import TINY_MODEL, example_path
from tinker_cookbook.renderers import TrainOnWhat
from tinker_cookbook.supervised import train


@chz.chz
class Config(train.Config):
    behavior_if_log_dir_exists: cli_utils.LogdirBehavior = chz.field(
        default="ask", doc="What to do with a log_path that has a run in it: ask, resume, delete or raise"
    )


def build_config_blueprint(model_name: str = TINY_MODEL) -> chz.Blueprint[Config]:
    """What the command line does not say. The model decides: the tiny one learns small data, others No Robots."""
    is_tiny = model_name == TINY_MODEL
    renderer_name = model_info.get_recommended_renderer_name(model_name)
    # To train on a file of your own, FromConversationFileBuilder of tinker_cookbook.supervised.data, with
    #   "dataset_builder.file_path": "conversations.jsonl", "dataset_builder.test_size": 100
    # Each line of the file is {"messages": [{"role": ..., "content": ...}]}.
    data = {
        "": KnightBuilder if is_tiny else NoRobotsBuilder,
        ".common_config.model_name_for_tokenizer": model_name,
        ".common_config.renderer_name": renderer_name,
        ".common_config.max_length": 32768,
        ".common_config.batch_size": 32 if is_tiny else 128,
        ".common_config.train_on_what": TrainOnWhat.ALL_ASSISTANT_MESSAGES,
    }
    evaluators = [KnightEvaluatorBuilder(model_name=model_name)] if is_tiny else []
    return chz.Blueprint(Config).apply(
        {
            "log_path": example_path("sl_basic", model_name),
            "model_name": model_name,
            "recipe_name": "sl_basic",
            "renderer_name": renderer_name,
            **{f"dataset_builder{field}": value for field, value in data.items()},
            "learning_rate": 3e-3 if is_tiny else 2e-4,
            "lr_schedule": "linear",
            "num_epochs": 1,
            "evaluator_builders": evaluators,
            "eval_every": 8,
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
