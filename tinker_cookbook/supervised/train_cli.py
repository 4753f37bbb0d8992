"""Fine-tune a model on your data:

    python -m tinker_cookbook.supervised.train_cli dataset=my.jsonl

What is not said is chosen by the size of the data and by the model; `--help` lists all there is to say. Everything the
user can get wrong is looked at before training starts.
"""

import asyncio
import functools
import logging
import os
import re
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

import chz
from tinker.types import SupportedModel

from tinker_cookbook import hyperparam_utils, model_info, service
from tinker_cookbook.cli_utils import LogdirBehavior, check_log_dir
from tinker_cookbook.eval.evaluators import EvaluatorBuilder
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.local_models import without_variant
from tinker_cookbook.renderers import TrainOnWhat
from tinker_cookbook.stores.storage import storage_for_reading
from tinker_cookbook.stores.training_store import TrainingRunStore
from tinker_cookbook.supervised import train
from tinker_cookbook.supervised.command_line import run_command
from tinker_cookbook.supervised.data import FromConversationFileBuilder
from tinker_cookbook.supervised.rows import OnBadRow, open_rows
from tinker_cookbook.supervised.sample_evaluator import SampleEvaluator
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig
from tinker_cookbook.utils.lr_scheduling import LRSchedule

logger = logging.getLogger(__name__)

_MAX_LENGTH = 4096
_PATIENCE_SECONDS = 150  # the SDK would go on trying for many minutes; an engine may take two to start


@chz.chz
class CLIConfig:
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
    renderer_name: str | None = chz.field(
        default=None, doc="How conversations are written; None: as the model was taught"
    )
    load_checkpoint_path: str | None = chz.field(
        default=None, doc="tinker:// path of weights to start from; None: the base model"
    )
    base_url: str | None = chz.field(
        default=None, doc="Server of the Tinker API; None: TINKER_BASE_URL, else an engine on this machine"
    )

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
    max_steps: int | None = chz.field(default=None, doc="Stop after so many steps; None: when the data ends")
    learning_rate: float | None = chz.field(default=None, doc="At its peak; None: a good one for the model")
    lr_schedule: LRSchedule = chz.field(default="linear", doc="How the learning rate falls over the steps")
    lora_rank: int = chz.field(default=32, doc="Rank of the adapter that is trained")
    seed: int = chz.field(default=0, doc="Of the adapter's first weights, and of what is held out")
    submit_ahead: int = chz.field(default=1, doc="Batches submitted while the server works on one")

    eval_every: int = chz.field(default=10, doc="Steps between evaluations; 0: none")
    num_samples: int = chz.field(
        default=3, doc="Held-out prompts that are answered and shown at evaluations; 0: none"
    )
    sample_tokens: int = chz.field(default=128, doc="Tokens of such an answer, at most")
    save_every: int = chz.field(default=20, doc="Steps between checkpoints; 0: none but the final one")

    log_path: str | None = chz.field(
        default=None, doc="Folder for all that is written; None: runs/sft-DATASET-MODEL, here"
    )
    behavior_if_log_dir_exists: LogdirBehavior = chz.field(
        default="ask", doc="resume, delete, raise or ask: what to do with a run that is there"
    )
    wandb_project: str | None = chz.field(default=None, doc="Project to log to, besides the files")
    wandb_name: str | None = chz.field(default=None, doc="Name of the run there")


def build_config(cli: CLIConfig) -> train.Config:
    """All that is left open decided, and all data checked."""
    rows = len(open_rows(cli.dataset, subset=cli.subset, split=cli.split))
    model = _served_model(cli)
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
        load_checkpoint_path=cli.load_checkpoint_path,
        dataset_builder=builder,
        evaluator_builders=_sampling(cli, builder, model) if test_dataset is not None else [],
        learning_rate=learning_rate,
        lr_schedule=cli.lr_schedule,
        num_epochs=sizes.num_epochs,
        lora_rank=cli.lora_rank,
        seed=cli.seed,
        base_url=cli.base_url,
        max_steps=cli.max_steps,
        submit_ahead=cli.submit_ahead,
        eval_every=cli.eval_every,
        save_every=cli.save_every,
        wandb_project=cli.wandb_project,
        wandb_name=cli.wandb_name,
    )


def _builder(cli: CLIConfig, model: "ServedModel", sizes: "Sizes") -> FromConversationFileBuilder:
    max_length = cli.max_length
    if max_length is None:
        max_length = min(_MAX_LENGTH, model.context or _MAX_LENGTH)
    return FromConversationFileBuilder(
        common_config=ChatDatasetBuilderCommonConfig(
            model_name_for_tokenizer=model.name,
            renderer_name=cli.renderer_name or model_info.get_recommended_renderer_name(model.name),
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


class ServedModel(NamedTuple):
    name: str
    context: int | None  # tokens it can read and write, if the server says


def _served_model(cli: CLIConfig) -> ServedModel:
    served = [model for model in _supported_models(cli.base_url) if model.trainable is not False]
    contexts = {model.model_name: model.max_context_length for model in served if model.model_name}
    if not contexts:
        raise ConfigurationError("the server has no model that can be trained")
    if cli.model_name is None:
        name, *others = contexts
        if others:
            logger.info("no model_name is given: %s; the server also has %s", name, ", ".join(others))
        return ServedModel(name, contexts[name])
    name = cli.model_name
    known = next((each for each in (name, without_variant(name)) if each in contexts), None)
    if known is None:
        raise ConfigurationError(f"the server has no model {name}; it has {', '.join(contexts)}")
    return ServedModel(name, contexts[known])


def _supported_models(base_url: str | None) -> Sequence[SupportedModel]:
    answer: Future[Sequence[SupportedModel]] = Future()

    def ask() -> None:
        try:
            answer.set_result(service.connect(base_url).get_server_capabilities().supported_models)
        except BaseException as error:  # the boundary of the thread: raised again by the one who waits
            answer.set_exception(error)

    # A thread that nobody waits for at the end: the SDK cannot be told to give up sooner.
    threading.Thread(target=ask, daemon=True).start()
    try:
        return answer.result(_PATIENCE_SECONDS)
    except TimeoutError as error:
        server = base_url or os.environ.get("TINKER_BASE_URL", "of the Tinker API")
        raise ConfigurationError(f"the server {server} does not answer; is it running?") from error


def _sampling(
    cli: CLIConfig, builder: FromConversationFileBuilder, model: ServedModel
) -> list[EvaluatorBuilder]:
    if not cli.num_samples:
        return []
    build = functools.partial(
        SampleEvaluator.from_builder,
        builder,
        cli.num_samples,
        max_tokens=cli.sample_tokens,
        context=model.context,
    )
    return [build]


# --- where the run is logged --------------------------------------------------------------------------------


def default_log_path(dataset: str, model_name: str) -> str:
    """The same data and model are the same run, which the same command goes on with."""
    data = dataset.rstrip("/").split("/")[-1].split(".")[0]
    model = without_variant(model_name).split("/")[-1]
    return "runs/" + re.sub(r"[^A-Za-z0-9._]+", "-", f"sft-{data}-{model}")


def check_holds_supervised_run(log_path: str) -> None:
    """Refuses a directory with anything but a run of this trainer, which would be mixed up with it, or deleted."""
    storage = storage_for_reading(log_path)
    names = storage.list_dir("")
    if not set(names) - {"logs.log"}:  # all there is of a run that was ended at once
        return
    config = TrainingRunStore(storage).read_config()
    if config is None:
        raise ConfigurationError(f"{log_path} holds {names[0]} and no run; choose another log_path")
    ours = f"{train.Config.__module__}.{train.Config.__qualname__}"
    if (found := config.get("__class__")) != ours:
        raise ConfigurationError(f"{log_path} holds a run of another kind ({found}); choose another log_path")


def run(cli: CLIConfig) -> None:
    config = build_config(cli)
    check_holds_supervised_run(config.log_path)
    check_log_dir(config.log_path, cli.behavior_if_log_dir_exists)
    asyncio.run(train.main(config))


def main(argv: Sequence[str] | None = None) -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it reports every request
    return run_command(lambda: run(chz.entrypoint(CLIConfig, argv=None if argv is None else list(argv))))


if __name__ == "__main__":
    sys.exit(main())
