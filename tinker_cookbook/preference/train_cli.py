"""Train a model on your preferences:

    python -m tinker_cookbook.preference.train_cli pairs=my.jsonl

What is not said is chosen by the size of the data and by the model; `--help` lists all there is to say, and the formats
of data that are known. Everything the user can get wrong is looked at before training starts.
"""

import functools
import logging
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
from tinker_cookbook.preference import pair_rows, train_dpo
from tinker_cookbook.preference.dpo_datasets import DPODatasetBuilderFromComparisons, KTODatasetBuilder
from tinker_cookbook.preference.losses import get_loss
from tinker_cookbook.preference.outcome import outcome
from tinker_cookbook.preference.pair_files import LabeledExamplesFromFile, PairFileBuilder
from tinker_cookbook.renderers import Message
from tinker_cookbook.served_models import ServedModel, served_model
from tinker_cookbook.supervised.sample_evaluator import SampleEvaluator
from tinker_cookbook.supervised.types import ChatDatasetBuilder, ChatDatasetBuilderCommonConfig

logger = logging.getLogger(__name__)

_MAX_LENGTH = 4096

# Of the rate for fine-tuning. A preference loss keeps pushing once its pairs are told apart, and at that rate the model
# soon forgets how to talk; published recipes use a tenth to a fortieth.
_LEARNING_RATE_SHARE = 0.1


@chz.chz
class _Data:
    """What is trained on, how, and which model: listed first."""

    pairs: str = chz.field(doc="Your data: a file, a folder, or the name of a Hugging Face data set")
    test_pairs: str | None = chz.field(default=None, doc="Held-out data; None: a part of pairs")
    test_size: int | None = chz.field(default=None, doc="Pairs to hold out; None: a tenth, 200 at most")

    loss: str = chz.field(default="dpo", doc="dpo, ipo, simpo, orpo, or kto, which also takes marked answers")
    dpo_beta: float | None = chz.field(
        default=None,
        doc="How closely the model is held to the reference: less is freer; None: usual for the loss",
    )
    label_smoothing: float = chz.field(default=0.0, doc="Share of labels taken to be wrong; of dpo and simpo")
    loss_options: tuple[str, ...] = chz.field(default=(), doc="Other options of the loss: gamma=0.5")
    reference_model_name: str | None = chz.field(
        default=None,
        doc="Model or tinker:// path of weights to stay near to; None: what the run starts from",
    )

    model_name: str | None = chz.field(
        default=None, doc="Base model, as the server names it; None: the first it has"
    )


@chz.chz
class CLIConfig(CommandSettings, _Data):
    max_length: int | None = chz.field(
        default=None,
        doc="Tokens of prompt and answer; longer ones are left out; None: 4096, or what the model can read",
    )
    batch_size: int | None = chz.field(
        default=None, doc="Pairs of a step; None: by the size of the data, 32 at most"
    )
    num_epochs: int | None = chz.field(
        default=None, doc="Times the data is gone through; None: 3 for less than 1,000 pairs, else 1"
    )
    learning_rate: float | None = chz.field(
        default=None, doc="At its peak; None: a tenth of what is good for fine-tuning the model"
    )
    num_samples: int = chz.field(
        default=3, doc="Held-out prompts that are answered and shown at evaluations; 0: none"
    )
    sample_tokens: int = chz.field(default=128, doc="Tokens of such an answer, at most")
    log_path: str | None = chz.field(
        default=None, doc="Folder for all that is written; None: runs/LOSS-PAIRS-MODEL, here"
    )


def build_config(cli: CLIConfig) -> train_dpo.Config:
    """All that is left open decided, and all data checked."""
    loss = get_loss(cli.loss)
    options = _loss_options(cli.loss_options)
    pairs, sizes = _read(cli, is_paired=loss.is_paired)
    model = served_model(cli.model_name, cli.base_url)
    builder = _builder(cli, pairs, model, sizes.batch_size)
    dataset, test_dataset = builder()  # here every row is rendered, and the renderer looked for
    config = train_dpo.Config(
        log_path=cli.log_path or default_log_path(cli.loss, cli.pairs, model.name),
        model_name=model.name,
        recipe_name="preference",
        renderer_name=builder.common_config.renderer_name,
        dataset_builder=builder,
        evaluator_builders=_sampling(cli, pairs, builder, model) if test_dataset is not None else [],
        learning_rate=_learning_rate(model.name) if cli.learning_rate is None else cli.learning_rate,
        num_epochs=sizes.num_epochs,
        dpo_beta=loss.usual_beta if cli.dpo_beta is None else cli.dpo_beta,
        loss_options=options or None,
        **handed_on(cli, "loss", "label_smoothing", "reference_model_name"),
    )
    logger.info(
        "%s, renderer %s: %s, %d epochs of %d steps, batch_size %d, learning rate %.2g, beta %g, max_length %s",
        config.model_name,
        config.renderer_name,
        config.loss,
        config.num_epochs,
        len(dataset),
        sizes.batch_size,
        config.learning_rate,
        config.dpo_beta,
        builder.common_config.max_length,
    )
    return config


def _learning_rate(model_name: str) -> float:
    return hyperparam_utils.get_lr(model_name) * _LEARNING_RATE_SHARE


def _loss_options(given: Sequence[str]) -> dict[str, float]:
    options: dict[str, float] = {}
    for each in given:
        name, _, value = each.partition("=")
        try:
            options[name] = float(value)
        except ValueError as error:
            raise ConfigurationError(f"loss_options={each}: write a name and a number, gamma=0.5") from error
    return options


# --- data -------------------------------------------------------------------------------------------------


class Sizes(NamedTuple):
    """What depends on how much there is to train on."""

    batch_size: int
    num_epochs: int

    @classmethod
    def for_count(cls, count: int, cli: CLIConfig) -> "Sizes":
        twentieth = max(2, count // 20)  # so that an epoch of little data is some 20 steps
        batch_size = min(32, count, 1 << (twentieth.bit_length() - 1))
        epochs = 3 if count < 1000 else 1
        return cls(
            batch_size if cli.batch_size is None else cli.batch_size,
            epochs if cli.num_epochs is None else cli.num_epochs,
        )


def _read(cli: CLIConfig, *, is_paired: bool) -> tuple[PairFileBuilder, Sizes]:
    """Reads the files, and says what was found in them."""
    test_size = 0 if cli.test_size is None and cli.test_pairs else cli.test_size
    pairs = PairFileBuilder(path=cli.pairs, test_path=cli.test_pairs, test_size=test_size, seed=cli.seed)
    for found in (pairs.pairs, pairs.test_pairs):
        if found is not None:
            logger.info("%s", found.report())
    train, test = pairs.get_train_and_test_datasets() if is_paired else pairs.get_labeled_examples()
    what = "pairs" if is_paired else "answers"
    logger.info("%d %s to train on, %d held out", len(train), what, len(test or ()))
    return pairs, Sizes.for_count(len(train), cli)


def _builder(
    cli: CLIConfig, pairs: PairFileBuilder, model: ServedModel, batch_size: int
) -> ChatDatasetBuilder:
    longest = min(_MAX_LENGTH, model.context or _MAX_LENGTH)
    common = ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=model.name,
        renderer_name=renderer_for(cli, model.name),
        max_length=longest if cli.max_length is None else cli.max_length,
        batch_size=batch_size,
    )
    if get_loss(cli.loss).is_paired:
        return DPODatasetBuilderFromComparisons(common_config=common, comparison_builder=pairs)
    return KTODatasetBuilder(common_config=common, example_builder=LabeledExamplesFromFile(file=pairs))


# --- what the model says ----------------------------------------------------------------------------------


def _sampling(
    cli: CLIConfig, pairs: PairFileBuilder, builder: ChatDatasetBuilder, model: ServedModel
) -> list[EvaluatorBuilder]:
    if not cli.num_samples:
        return []
    return [
        functools.partial(
            held_out_samples, pairs, builder, cli.num_samples, cli.sample_tokens, context=model.context
        )
    ]


def held_out_samples(
    pairs: PairFileBuilder,
    builder: ChatDatasetBuilder,
    count: int,
    max_tokens: int,
    *,
    context: int | None,
) -> SampleEvaluator:
    """On the first prompts that are held out, each with an answer that is wanted, if there is one."""
    _, test = pairs.get_labeled_examples()
    shown: dict[str, list[Message]] = {}
    for example in test or []:
        key = repr(example.prompt_conversation)
        if example.is_desirable or key not in shown:
            shown[key] = [*example.prompt_conversation, *example.completion]
    room = None if context is None else context - max_tokens
    return SampleEvaluator(
        list(shown.values())[:count], builder.renderer, max_tokens=max_tokens, max_prompt_tokens=room
    )


# --- the command ------------------------------------------------------------------------------------------


def default_log_path(loss: str, pairs: str, model_name: str) -> str:
    return run_folder(loss, data_name(pairs), without_variant(model_name).split("/")[-1])


def run(cli: CLIConfig) -> None:
    config = build_config(cli)
    check_holds_run_of(train_dpo.Config, config.log_path)
    check_log_dir(config.log_path, cli.behavior_if_log_dir_exists)
    train_dpo.main(config)
    logger.info("%s", outcome(config.log_path))


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it reports every request
    if "--help" in arguments:
        print(f"{__doc__}\n{pair_rows.__doc__}")
    return run_command(lambda: run(chz.entrypoint(CLIConfig, argv=arguments)))


if __name__ == "__main__":
    sys.exit(main())
