"""Step 2: the student learns the teacher's answers, without the prompt.

python -m tinker_cookbook.recipes.prompt_distillation.train                        # the tiny model, one_word
python -m tinker_cookbook.recipes.prompt_distillation.train task=language_id model_name=Qwen/Qwen3.5-9B
"""

import asyncio
import sys
from pathlib import Path

import chz

from tinker_cookbook.cli_utils import check_log_dir
from tinker_cookbook.command_line import run_command
from tinker_cookbook.command_settings import CommandSettings, handed_on, renderer_for
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.launch import TINY_MODEL, example_path, learning_rate_for
from tinker_cookbook.recipes.prompt_distillation.create_data import default_file
from tinker_cookbook.recipes.prompt_distillation.evaluator import LabelEvaluatorBuilder
from tinker_cookbook.recipes.prompt_distillation.tasks import get_task
from tinker_cookbook.renderers import TrainOnWhat
from tinker_cookbook.supervised import train
from tinker_cookbook.supervised.data import FromConversationFileBuilder
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig


@chz.chz
class CLIConfig(CommandSettings):
    task: str = chz.field(default="one_word", doc="one_word or language_id: what the student is tested with")
    file_path: str | None = chz.field(default=None, doc="What create_data wrote; None: where it writes")
    model_name: str = chz.field(default=TINY_MODEL, doc="The student")
    num_epochs: int = chz.field(default=4, doc="Times the data is gone through")
    max_length: int | None = chz.field(default=32768, doc="Tokens beyond which a conversation is cut")
    batch_size: int = chz.field(default=16, doc="Conversations of a step")
    test_size: int = chz.field(default=16, doc="Conversations of the file that are held out, for the loss")
    eval_every: int = chz.field(default=20, doc="Steps between evaluations; 0: none")


def default_log_path(task: str, model_name: str) -> str:
    return example_path("prompt_distillation", task, model_name)


def build_config(cli: CLIConfig) -> train.Config:
    task = get_task(cli.task)
    file_path = Path(cli.file_path or default_file(cli.task)).expanduser()
    if not file_path.exists():
        raise ConfigurationError(
            f"there is no {file_path}; let a teacher write it: python -m "
            f"tinker_cookbook.recipes.prompt_distillation.create_data task={task.name} output_file={file_path}"
        )
    renderer_name = renderer_for(cli, cli.model_name)
    dataset_builder = FromConversationFileBuilder(
        common_config=ChatDatasetBuilderCommonConfig(
            model_name_for_tokenizer=cli.model_name,
            renderer_name=renderer_name,
            max_length=cli.max_length,
            batch_size=cli.batch_size,
            train_on_what=TrainOnWhat.ALL_ASSISTANT_MESSAGES,
        ),
        file_path=str(file_path),
        test_size=cli.test_size,
    )
    evaluator = LabelEvaluatorBuilder(task=cli.task, model_name=cli.model_name, renderer_name=renderer_name)
    return train.Config(
        log_path=cli.log_path or default_log_path(cli.task, cli.model_name),
        model_name=cli.model_name,
        recipe_name="prompt_distillation",
        renderer_name=renderer_name,
        dataset_builder=dataset_builder,
        evaluator_builders=[evaluator],
        learning_rate=learning_rate_for(cli.model_name, cli.learning_rate),
        **handed_on(cli, "num_epochs"),
    )


def cli_main(cli_config: CLIConfig) -> None:
    config = build_config(cli_config)
    check_log_dir(config.log_path, cli_config.behavior_if_log_dir_exists)
    asyncio.run(train.main(config))


if __name__ == "__main__":
    sys.exit(run_command(lambda: cli_main(chz.entrypoint(CLIConfig))))
