"""Fine-tune a chat model on conversations.

python -m tinker_cookbook.recipes.chat_sl.train                      # the tiny model, a minute, nothing to download
python -m tinker_cookbook.recipes.chat_sl.train model_name=Qwen/Qwen3.5-9B-Base dataset=no_robots
python -m tinker_cookbook.recipes.chat_sl.train model_name=... dataset=my_conversations.jsonl test_size=100
"""

import asyncio
import sys
from pathlib import Path

import chz

from tinker_cookbook.checkpoint_utils import resolve_renderer_name_from_checkpoint_or_default
from tinker_cookbook.cli_utils import LogdirBehavior, check_log_dir
from tinker_cookbook.command_line import run_command
from tinker_cookbook.eval.evaluators import EvaluatorBuilder
from tinker_cookbook.recipes.chat_sl.chat_datasets import KnightBuilder, NoRobotsBuilder, Tulu3Builder
from tinker_cookbook.recipes.knights import KnightEvaluatorBuilder
from tinker_cookbook.recipes.launch import TINY_MODEL, example_path, learning_rate_for
from tinker_cookbook.renderers import TrainOnWhat
from tinker_cookbook.supervised import train
from tinker_cookbook.supervised.data import FromConversationFileBuilder
from tinker_cookbook.supervised.types import ChatDatasetBuilder, ChatDatasetBuilderCommonConfig
from tinker_cookbook.utils.lr_scheduling import LRSchedule

TINY = "tiny"
NAMED: dict[str, type[ChatDatasetBuilder]] = {
    TINY: KnightBuilder,
    "no_robots": NoRobotsBuilder,
    "tulu3": Tulu3Builder,
}


@chz.chz
class CLIConfig:
    model_name: str = chz.field(default=TINY_MODEL, doc="Base model, as the server names it")
    dataset: str = chz.field(
        default=TINY, doc="tiny, no_robots, tulu3, a file or folder of conversations, or org/name on the hub"
    )
    test_size: int = chz.field(default=0, doc="Conversations held out of a file or of a set on the hub")
    load_checkpoint_path: str | None = chz.field(default=None, doc="tinker:// path of weights to start from")
    renderer_name: str | None = chz.field(
        default=None, doc="None: that of the checkpoint, else as the model was taught"
    )
    train_on_what: TrainOnWhat | None = chz.field(
        default=None, doc="Which messages are learned; None: as the data set says"
    )
    max_length: int | None = chz.field(default=16384, doc="Tokens beyond which a conversation is cut")
    batch_size: int | None = chz.field(default=None, doc="None: 32 for dataset=tiny, else 256")
    learning_rate: float | None = chz.field(default=None, doc="At its peak; None: hyperparam_utils.get_lr")
    lr_schedule: LRSchedule = chz.field(default="linear", doc="How it falls over the steps")
    num_epochs: int = chz.field(default=1, doc="Times the data is gone through")
    lora_rank: int = chz.field(default=32, doc="Rank of the adapter that is trained")
    seed: int = chz.field(default=0, doc="Of the adapter's first weights")
    max_steps: int | None = chz.field(default=None, doc="Stop after so many steps; None: when the data ends")

    eval_every: int = chz.field(default=20, doc="Steps between evaluations; 0: none")
    infrequent_eval_every: int = chz.field(default=100, doc="Steps between the costly ones; 0: none")
    save_every: int = chz.field(default=20, doc="Steps between checkpoints; 0: the final one alone")
    rolling_save_every: int = chz.field(default=0, doc="Steps between rolling checkpoints; 0: none")
    rolling_ttl_seconds: int = chz.field(default=7200, doc="How long the server keeps a rolling checkpoint")

    base_url: str | None = chz.field(
        default=None, doc="Server; None: TINKER_BASE_URL, else one on this machine"
    )
    log_path: str | None = chz.field(default=None, doc="Folder of the run; None: named after its settings")
    behavior_if_log_dir_exists: LogdirBehavior = chz.field(default="ask", doc="ask, resume, delete or raise")
    wandb_project: str | None = chz.field(default=None, doc="Project to log to, besides the files")
    wandb_name: str | None = chz.field(default=None, doc="Name of the run there")


def build_config(cli: CLIConfig) -> train.Config:
    renderer_name = resolve_renderer_name_from_checkpoint_or_default(
        model_name=cli.model_name,
        explicit_renderer_name=cli.renderer_name,
        load_checkpoint_path=cli.load_checkpoint_path,
        base_url=cli.base_url,
    )
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
        load_checkpoint_path=cli.load_checkpoint_path,
        dataset_builder=_dataset_builder(cli, renderer_name, batch_size),
        learning_rate=learning_rate,
        lr_schedule=cli.lr_schedule,
        num_epochs=cli.num_epochs,
        lora_rank=cli.lora_rank,
        seed=cli.seed,
        max_steps=cli.max_steps,
        evaluator_builders=evaluators,
        eval_every=cli.eval_every,
        infrequent_eval_every=cli.infrequent_eval_every,
        save_every=cli.save_every,
        rolling_save_every=cli.rolling_save_every,
        rolling_ttl_seconds=cli.rolling_ttl_seconds,
        base_url=cli.base_url,
        wandb_project=cli.wandb_project,
        wandb_name=cli.wandb_name,
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
