"""Fine-tune a chat model on conversations.

python -m tinker_cookbook.recipes.chat_sl.train                      # the tiny model, a minute, nothing to download
python -m tinker_cookbook.recipes.chat_sl.train model_name=Qwen/Qwen3.5-9B-Base dataset=no_robots
python -m tinker_cookbook.recipes.chat_sl.train model_name=... dataset=my_conversations.jsonl test_size=100
"""

import asyncio
import sys
from pathlib import Path

import chz

from tinker_cookbook.cli_utils import check_log_dir
from tinker_cookbook.command_line import run_command
from tinker_cookbook.command_settings import CommandSettings, handed_on, renderer_for
from tinker_cookbook.eval.evaluators import EvaluatorBuilder
from tinker_cookbook.recipes.chat_sl.chat_datasets import KnightBuilder, NoRobotsBuilder, Tulu3Builder
from tinker_cookbook.recipes.knights import KnightEvaluatorBuilder
from tinker_cookbook.recipes.launch import TINY_MODEL, example_path, learning_rate_for
from tinker_cookbook.renderers import TrainOnWhat
from tinker_cookbook.supervised import train
from tinker_cookbook.supervised.data import FromConversationFileBuilder
from tinker_cookbook.supervised.types import ChatDatasetBuilder, ChatDatasetBuilderCommonConfig

TINY = "tiny"
NAMED: dict[str, type[ChatDatasetBuilder]] = {
    TINY: KnightBuilder,
    "no_robots": NoRobotsBuilder,
    "tulu3": Tulu3Builder,
}


@chz.chz
class CLIConfig(CommandSettings):
    model_name: str = chz.field(default=TINY_MODEL, doc="Base model, as the server names it")
    dataset: str = chz.field(
        default=TINY, doc="tiny, no_robots, tulu3, a file or folder of conversations, or org/name on the hub"
    )
    test_size: int = chz.field(default=0, doc="Conversations held out of a file or of a set on the hub")
    train_on_what: TrainOnWhat | None = chz.field(
        default=None, doc="Which messages are learned; None: as the data set says"
    )
    max_length: int | None = chz.field(default=16384, doc="Tokens beyond which a conversation is cut")
    batch_size: int | None = chz.field(default=None, doc="None: 32 for dataset=tiny, else 256")
    num_epochs: int = chz.field(default=1, doc="Times the data is gone through")

    eval_every: int = chz.field(default=20, doc="Steps between evaluations; 0: none")
    infrequent_eval_every: int = chz.field(default=100, doc="Steps between the costly ones; 0: none")
    rolling_save_every: int = chz.field(default=0, doc="Steps between rolling checkpoints; 0: none")
    rolling_ttl_seconds: int = chz.field(default=7200, doc="How long the server keeps a rolling checkpoint")


def build_config(cli: CLIConfig) -> train.Config:
    renderer_name = renderer_for(cli, cli.model_name)
    batch_size = cli.batch_size or (32 if cli.dataset == TINY else 256)
    learning_rate = learning_rate_for(cli.model_name, cli.learning_rate)
    name = (
        Path(cli.dataset).stem,
        cli.model_name,
        f"{cli.lora_rank}rank",
        f"{learning_rate:g}lr",
        batch_size,
    )
    evaluators: list[EvaluatorBuilder] = []
    if cli.dataset == TINY:
        evaluators.append(KnightEvaluatorBuilder(model_name=cli.model_name, renderer_name=renderer_name))
    return train.Config(
        log_path=cli.log_path or example_path("chat_sl", *name),
        model_name=cli.model_name,
        recipe_name="chat_sl",
        renderer_name=renderer_name,
        dataset_builder=_dataset_builder(cli, renderer_name, batch_size),
        evaluator_builders=evaluators,
        learning_rate=learning_rate,
        **handed_on(cli, "num_epochs", "infrequent_eval_every", "rolling_save_every", "rolling_ttl_seconds"),
    )


def _dataset_builder(cli: CLIConfig, renderer_name: str, batch_size: int) -> ChatDatasetBuilder:
    common = ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=cli.model_name,
        renderer_name=renderer_name,
        max_length=cli.max_length,
        batch_size=batch_size,
        train_on_what=cli.train_on_what,
    )
    if cli.dataset in NAMED:
        return NAMED[cli.dataset](common_config=common)
    return FromConversationFileBuilder(common_config=common, file_path=cli.dataset, test_size=cli.test_size)


def cli_main(cli_config: CLIConfig) -> None:
    config = build_config(cli_config)
    check_log_dir(config.log_path, cli_config.behavior_if_log_dir_exists)
    asyncio.run(train.main(config))


if __name__ == "__main__":
    sys.exit(run_command(lambda: cli_main(chz.entrypoint(CLIConfig))))
