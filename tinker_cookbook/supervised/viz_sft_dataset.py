"""Look at what would be trained on, before it is: every token in the colour of its weight.

    python -m tinker_cookbook.supervised.viz_sft_dataset dataset=my.jsonl model_name=... page=out.html

With `page` an HTML file is written that any browser opens; without it, examples are shown in the terminal.
"""

import logging
import sys
from collections.abc import Iterator
from itertools import islice

import chz
import tinker

from tinker_cookbook import model_info
from tinker_cookbook.command_line import run_command
from tinker_cookbook.display import colorize_example
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.renderers import TrainOnWhat
from tinker_cookbook.supervised.data import FromConversationFileBuilder
from tinker_cookbook.supervised.types import (
    ChatDatasetBuilder,
    ChatDatasetBuilderCommonConfig,
    SupervisedDataset,
)
from tinker_cookbook.tokenizer_utils import Tokenizer
from tinker_cookbook.utils import logtree
from tinker_cookbook.utils.logtree_formatters import TokensFormatter
from tinker_cookbook.utils.misc_utils import lookup_func

_BUILDERS = "tinker_cookbook.recipes.chat_sl.chat_datasets"


@chz.chz
class Config:
    """Which data is looked at, and as which model would read it."""

    model_name: str = chz.field(
        default="meta-llama/Llama-3.1-8B", doc="Whose tokenizer and renderer are used"
    )
    dataset: str | None = chz.field(
        default=None, doc="A file, a folder, or the name of a Hugging Face data set"
    )
    dataset_path: str = chz.field(
        default="Tulu3Builder", doc="Without dataset: a builder, as module:Class or by name from chat_sl"
    )
    renderer_name: str | None = chz.field(
        default=None, doc="How conversations are written; None: as recommended"
    )
    max_length: int | None = chz.field(
        default=None, doc="Tokens of an example, beyond which it is cut; None: never"
    )
    train_on_what: TrainOnWhat | None = chz.field(
        default=None, doc="Which messages are learned; None: as the data says"
    )
    columns: tuple[str, ...] = chz.field(
        default=(), doc="Columns to read: a,b are prompt and completion; a is a conversation or text"
    )
    page: str | None = chz.field(default=None, doc="HTML file to write; None: show in the terminal")
    num_examples: int = chz.field(default=100, doc="How many are shown")


def run(cfg: Config) -> None:
    """Shows the first examples, coloured by what is learned."""
    builder = _builder(cfg)
    dataset, _ = builder()
    examples = islice(_examples(dataset), cfg.num_examples)
    if cfg.page is not None:
        count = write_page(cfg.page, list(examples), builder.tokenizer, cfg.dataset or cfg.dataset_path)
        print(f"wrote {count} examples to {cfg.page}")
    else:
        _show_in_terminal(examples, builder.tokenizer)


def write_page(path: str, examples: list[tinker.Datum], tokenizer: Tokenizer, title: str) -> int:
    """One file that needs no other; returns how many examples are in it."""
    with logtree.init_trace(f"What is learned of {title}", path):
        for number, datum in enumerate(examples, 1):
            tokens, weights = _tokens_and_weights(datum)
            learned = sum(weight > 0 for weight in weights)
            caption = f"{len(tokens)} tokens, {learned} of them learned"
            with logtree.scope_header(f"Example {number}"):
                formatter = TokensFormatter.from_ids(
                    tokens, weights, tokenizer, caption=caption, label="weight"
                )
                logtree.log_formatter(formatter)
    return len(examples)


def _tokens_and_weights(datum: tinker.Datum) -> tuple[list[int], list[float]]:
    """The whole sequence, each token with the weight of its own prediction; the first is nobody's."""
    targets = [int(token) for token in datum.loss_fn_inputs["target_tokens"].data]
    weights = [float(weight) for weight in datum.loss_fn_inputs["weights"].data]
    first = datum.model_input.chunks[0]
    begins_with_text = isinstance(first, tinker.EncodedTextChunk)
    return ([first.tokens[0], *targets], [0.0, *weights]) if begins_with_text else (targets, weights)


def _show_in_terminal(examples: Iterator[tinker.Datum], tokenizer: Tokenizer) -> None:
    for number, datum in enumerate(examples, 1):
        print(f"====== example {number}: green is learned, yellow is not ======")
        print(colorize_example(datum, tokenizer))
        if sys.stdin.isatty() and input("Enter for the next one, q to leave: ").strip() == "q":
            return


def _examples(dataset: SupervisedDataset) -> Iterator[tinker.Datum]:
    for index in range(len(dataset)):
        yield from dataset.get_batch(index)


def _builder(cfg: Config) -> ChatDatasetBuilder:
    common = ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=cfg.model_name,
        renderer_name=cfg.renderer_name or model_info.get_recommended_renderer_name(cfg.model_name),
        max_length=cfg.max_length,
        batch_size=1,
        train_on_what=cfg.train_on_what,
    )
    if cfg.dataset is not None:
        return FromConversationFileBuilder(common_config=common, file_path=cfg.dataset, columns=cfg.columns)
    try:
        builder = lookup_func(cfg.dataset_path, default_module=_BUILDERS)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"there is no builder {cfg.dataset_path}; name a file with dataset=my.jsonl, or a builder as module:Class"
        ) from error
    return builder(common_config=common)


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    return run_command(lambda: run(chz.entrypoint(Config)))


if __name__ == "__main__":
    sys.exit(main())
