"""Fine-tune a model on your data:

    python -m tinker_cookbook.supervised.train_cli dataset=my.jsonl

What is not said is chosen by the size of the data and by the model; `--help` lists all there is to say. Everything the
user can get wrong is looked at before training starts.
"""

import asyncio
import functools
import logging
import re
import sys
from collections.abc import Sequence
from typing import NamedTuple

import chz

from tinker_cookbook import hyperparam_utils
from tinker_cookbook.cli_utils import check_holds_run_of, check_log_dir, data_name, run_folder
from tinker_cookbook.command_line import run_command
from tinker_cookbook.command_settings import CommandSettings, handed_on, renderer_for
from tinker_cookbook.eval.evaluators import EvaluatorBuilder
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.local_models import without_variant
from tinker_cookbook.renderers import TrainOnWhat
from tinker_cookbook.served_models import ServedModel, served_model
from tinker_cookbook.supervised import train
from tinker_cookbook.supervised.data import FromConversationFileBuilder
from tinker_cookbook.supervised.rows import OnBadRow, open_rows
from tinker_cookbook.supervised.sample_evaluator import SampleEvaluator
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig

logger = logging.getLogger(__name__)

_MAX_LENGTH = 4096


@chz.chz
class _Data:
    """What is trained on, and which model: listed first."""

    dataset: str = chz.field(doc="Your data: a file, a folder, or the name of a Hugging Face data set")
    columns: tuple[str, ...] = chz.field(
        default=(), doc="Columns to read: a,b are prompt and completion; a is a conversation or text"
    )
    subset: str | None = chz.field(default=None, doc="Of a Hugging Face data set: its configuration")
    split: str = chz.field(default="train", doc="Of a Hugging Face data set: its split")
    on_bad_row: OnBadRow = chz.field(
        default="stop", doc="stop, or skip: what happens at a row that does not fit"
    )
    test_dataset: str | None = chz.field(default=None, doc="Held-out data; None: a part of dataset")
    test_split: str | None = chz.field(
        default=None, doc="Of a Hugging Face data set: the split to hold out; None: a part of dataset"
    )
    test_size: int | None = chz.field(
        default=None, doc="Examples of dataset to hold out; None: a tenth, 200 at most"
    )

    model_name: str | None = chz.field(
        default=None, doc="Base model, as the server names it; None: the first it has"
    )


@chz.chz
class CLIConfig(CommandSettings, _Data):
    train_on_what: TrainOnWhat | None = chz.field(
        default=None,
        doc="What is learned: last_assistant_message, all_tokens, ...; None: all_assistant_messages",
    )
    max_length: int | None = chz.field(
        default=None,
        doc="Tokens of an example, beyond which it is cut; None: 4096, or what the model can read",
    )
    batch_size: int | None = chz.field(
        default=None, doc="Examples of a step; None: by the size of the data, 64 at most"
    )
    num_epochs: int | None = chz.field(
        default=None, doc="Times the data is gone through; None: 3 for less than 5,000 examples, else 1"
    )
    submit_ahead: int = chz.field(default=1, doc="Batches submitted while the server works on one")
    num_samples: int = chz.field(
        default=3, doc="Held-out prompts that are answered and shown at evaluations; 0: none"
    )
    sample_tokens: int = chz.field(default=128, doc="Tokens of such an answer, at most")
    sample_pattern: str | None = chz.field(
        default=None,
        doc="Regular expression; the share of such answers in which it is found is samples/match",
    )
    log_path: str | None = chz.field(
        default=None, doc="Folder for all that is written; None: runs/sft-DATASET-MODEL, here"
    )


def build_config(cli: CLIConfig) -> train.Config:
    """All that is left open decided, and all data checked."""
    rows = len(open_rows(cli.dataset, subset=cli.subset, split=cli.split))
    model = served_model(cli.model_name, cli.base_url)
    sizes = Sizes.for_rows(rows, cli)
    builder = _builder(cli, model, sizes)
    common = builder.common_config
    dataset, test_dataset = builder()  # here every row is checked, and the renderer looked for
    learning_rate = cli.learning_rate
    if learning_rate is None:
        learning_rate = hyperparam_utils.get_lr(model.name)
    logger.info(
        "%s, renderer %s: %d epochs of %d steps, batch_size %d, learning rate %.2g, max_length %s",
        model.name,
        common.renderer_name,
        sizes.num_epochs,
        len(dataset),
        common.batch_size,
        learning_rate,
        common.max_length,
    )
    return train.Config(
        log_path=cli.log_path or default_log_path(cli.dataset, model.name),
        model_name=model.name,
        recipe_name="supervised",
        renderer_name=common.renderer_name,
        dataset_builder=builder,
        evaluator_builders=_sampling(cli, builder, model) if test_dataset is not None else [],
        learning_rate=learning_rate,
        num_epochs=sizes.num_epochs,
        **handed_on(cli, "submit_ahead"),
    )


def _builder(cli: CLIConfig, model: ServedModel, sizes: "Sizes") -> FromConversationFileBuilder:
    max_length = cli.max_length
    if max_length is None:
        max_length = min(_MAX_LENGTH, model.context or _MAX_LENGTH)
    return FromConversationFileBuilder(
        common_config=ChatDatasetBuilderCommonConfig(
            model_name_for_tokenizer=model.name,
            renderer_name=renderer_for(cli, model.name),
            max_length=max_length,
            batch_size=sizes.batch_size,
            train_on_what=cli.train_on_what,
        ),
        file_path=cli.dataset,
        test_path=cli.test_dataset,
        test_split=cli.test_split,
        test_size=sizes.test_size,
        shuffle_seed=cli.seed,
        on_bad_row=cli.on_bad_row,
        columns=cli.columns,
        subset=cli.subset,
        split_name=cli.split,
    )


class Sizes(NamedTuple):
    """What depends on how much data there is."""

    test_size: int
    batch_size: int
    num_epochs: int

    @classmethod
    def for_rows(cls, rows: int, cli: CLIConfig) -> "Sizes":
        test_size = cli.test_size
        if test_size is None:
            test_size = 0 if cli.test_dataset or cli.test_split else min(200, rows // 10)
        twentieth = max(1, (rows - test_size) // 20)  # so that an epoch of little data is some 20 steps
        batch_size = min(64, 1 << (twentieth.bit_length() - 1))
        epochs = 3 if rows < 5000 else 1
        return cls(
            test_size,
            batch_size if cli.batch_size is None else cli.batch_size,
            epochs if cli.num_epochs is None else cli.num_epochs,
        )


def _sampling(
    cli: CLIConfig, builder: FromConversationFileBuilder, model: ServedModel
) -> list[EvaluatorBuilder]:
    if not cli.num_samples:
        return []
    if cli.sample_pattern is not None:
        try:
            re.compile(cli.sample_pattern)
        except re.error as error:
            raise ConfigurationError(f"sample_pattern={cli.sample_pattern!r}: {error}") from error
    build = functools.partial(
        SampleEvaluator.from_builder,
        builder,
        cli.num_samples,
        max_tokens=cli.sample_tokens,
        context=model.context,
        pattern=cli.sample_pattern,
    )
    return [build]


# --- where the run is logged --------------------------------------------------------------------------------


def default_log_path(dataset: str, model_name: str) -> str:
    return run_folder("sft", data_name(dataset), without_variant(model_name).split("/")[-1])


def run(cli: CLIConfig) -> None:
    config = build_config(cli)
    check_holds_run_of(train.Config, config.log_path)
    check_log_dir(config.log_path, cli.behavior_if_log_dir_exists)
    asyncio.run(train.main(config))


def main(argv: Sequence[str] | None = None) -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it reports every request
    return run_command(lambda: run(chz.entrypoint(CLIConfig, argv=None if argv is None else list(argv))))


if __name__ == "__main__":
    sys.exit(main())
