"""Reinforcement learning on the grades of a model.

python -m tinker_cookbook.recipes.rubric.train                # the tiny model learns to be brief, and grades itself
python -m tinker_cookbook.recipes.rubric.train data=addition model_name=Qwen/Qwen3-8B grader_model=Qwen/Qwen3-32B
python -m tinker_cookbook.recipes.rubric.train train_data=mine.jsonl test_data=my_test.jsonl model_name=...
"""

import sys
from pathlib import Path

import chz

from tinker_cookbook.command_line import run_command
from tinker_cookbook.recipes.rl_launch import RLCLIConfig, renderer_for, rl_config, run_training
from tinker_cookbook.recipes.rubric import generate_data
from tinker_cookbook.recipes.rubric.env import GraderConfig, RubricDatasetBuilder
from tinker_cookbook.recipes.rubric.generate_data import DataName
from tinker_cookbook.rl import train


@chz.chz
class CLIConfig(RLCLIConfig):
    groups_per_batch: int = chz.field(default=8, doc="Conversations in a batch")
    data: DataName = chz.field(default="brief", doc="brief or addition, made at need; or name train_data")
    train_data: str | None = chz.field(default=None, doc="JSONL of conversations with their rubrics")
    test_data: str | None = chz.field(default=None, doc="Likewise to test on")
    test_size: int = chz.field(default=64, doc="Conversations to test on")
    grader_model: str | None = chz.field(default=None, doc="The model that grades; None: model_name itself")
    grader_renderer_name: str | None = chz.field(default=None, doc="None: as the grader was taught")
    grader_checkpoint: str | None = chz.field(default=None, doc="tinker:// path of its weights, if trained")
    grader_max_tokens: int | None = chz.field(default=None, doc="Of a grade; None: 4 for brief, else 1024")
    grader_timeout: float = chz.field(default=300.0, doc="Seconds to wait for a grade")
    n_batches: int = chz.field(default=20, doc="Batches of conversations, if they are made")


def build_config(cli: CLIConfig) -> train.Config:
    renderer_name = renderer_for(cli, short_replies=cli.max_tokens is None)
    train_data, test_data = _files(cli)
    is_brief = cli.train_data is None and cli.data == "brief"
    return rl_config(
        cli,
        recipe="rubric",
        data_name=Path(train_data).stem if cli.train_data else cli.data,
        renderer_name=renderer_name,
        max_tokens=cli.max_tokens or 48,
        dataset_builder=RubricDatasetBuilder(
            train_data=train_data,
            test_data=test_data,
            test_size=cli.test_size,
            batch_size=cli.groups_per_batch,
            group_size=cli.group_size,
            model_name_for_tokenizer=cli.model_name,
            renderer_name=renderer_name,
            grader_timeout=cli.grader_timeout,
            grader=GraderConfig(
                model_name=cli.grader_model or cli.model_name,
                renderer_name=cli.grader_renderer_name,
                checkpoint=cli.grader_checkpoint,
                max_tokens=cli.grader_max_tokens or (4 if is_brief else 1024),
                base_url=cli.base_url,
            ),
        ),
    )


def _files(cli: CLIConfig) -> tuple[str, str | None]:
    """Those that were named, or such as `prepare_data` writes."""
    if cli.train_data is not None:
        return cli.train_data, cli.test_data
    folder = Path(generate_data.default_folder(cli.data)) / f"seed{cli.seed}-{_train_size(cli)}"
    return str(folder / "train.jsonl"), cli.test_data or str(folder / "test.jsonl")


def _train_size(cli: CLIConfig) -> int:
    return cli.n_batches * cli.groups_per_batch


def prepare_data(cli: CLIConfig) -> None:
    """The same settings are the same data."""
    if cli.train_data is None:
        train_data, _ = _files(cli)
        folder = str(Path(train_data).parent)
        generate_data.generate(
            generate_data.Config(
                data=cli.data,
                folder=folder,
                train_size=_train_size(cli),
                test_size=cli.test_size,
                seed=cli.seed,
            )
        )


def cli_main(cli_config: CLIConfig) -> None:
    config = build_config(cli_config)
    prepare_data(cli_config)
    run_training(cli_config, config)


if __name__ == "__main__":
    sys.exit(run_command(lambda: cli_main(chz.entrypoint(CLIConfig))))
