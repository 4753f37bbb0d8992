"""Conversations to fine-tune on, by name."""

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import chz
import tinker

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.knights import TELLINGS, knight_conversations
from tinker_cookbook.renderers import Message, TrainOnWhat
from tinker_cookbook.supervised.data import SupervisedDatasetFromHFDataset, conversation_to_datum
from tinker_cookbook.supervised.types import ChatDatasetBuilder, SupervisedDataset

if TYPE_CHECKING:
    import datasets  # pyright: ignore[reportMissingImports]

T = TypeVar("T")


class InMemoryDataset(SupervisedDataset):
    """Conversations of a list. Whatever does not fill the last batch is left out; `set_epoch` brings others there."""

    def __init__(self, rows: Sequence[T], batch_size: int, map_fn: Callable[[T], tinker.Datum]):
        self._rows = list(rows)
        self._order = list(rows)
        self._batch_size = batch_size
        self._map_fn = map_fn

    def get_batch(self, index: int) -> list[tinker.Datum]:
        start = index * self._batch_size
        return [self._map_fn(row) for row in self._order[start : start + self._batch_size]]

    def set_epoch(self, seed: int = 0) -> None:
        self._order = random.Random(seed).sample(self._rows, len(self._rows))

    def __len__(self) -> int:
        return len(self._rows) // self._batch_size


@chz.chz
class KnightBuilder(ChatDatasetBuilder):
    """A style that the tiny model does not know; made on the spot, see `recipes/knights.py`."""

    tellings: int = chz.field(default=TELLINGS, doc="Times that each question is answered")
    seed: int = chz.field(default=0, doc="Of the order and of the openings")

    def __call__(self) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        train = knight_conversations("train", tellings=self.tellings, seed=self.seed)
        test = knight_conversations("test", tellings=1, seed=self.seed)
        common = self.common_config
        return (
            InMemoryDataset(train, common.batch_size, self._datum),
            InMemoryDataset(test, len(test), self._datum),
        )

    def _datum(self, conversation: list[Message]) -> tinker.Datum:
        return to_datum(self, conversation, TrainOnWhat.ALL_ASSISTANT_MESSAGES)


@chz.chz
class NoRobotsBuilder(ChatDatasetBuilder):
    """9,500 instructions with answers written by people, and 500 held out."""

    def __call__(self) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        found = load_from_hub("HuggingFaceH4/no_robots")
        train = found["train"].shuffle(seed=0)
        return _train_and_test(self, train, found["test"], TrainOnWhat.ALL_ASSISTANT_MESSAGES)


@chz.chz
class Tulu3Builder(ChatDatasetBuilder):
    """939,000 conversations of many kinds; the first 1,024 after shuffling are held out."""

    test_size: int = 1024

    def __call__(self) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        rows = load_from_hub("allenai/tulu-3-sft-mixture")["train"].shuffle(seed=0)
        test = rows.select(range(self.test_size))
        train = rows.select(range(self.test_size, len(rows)))
        return _train_and_test(self, train, test, TrainOnWhat.LAST_ASSISTANT_MESSAGE)


def _train_and_test(
    builder: ChatDatasetBuilder,
    train: "datasets.Dataset",
    test: "datasets.Dataset",
    usually: TrainOnWhat,
) -> tuple[SupervisedDataset, SupervisedDataset]:
    def datum(row: dict[str, Any]) -> tinker.Datum:
        return to_datum(builder, row["messages"], usually)

    batch_size = builder.common_config.batch_size
    return (
        SupervisedDatasetFromHFDataset(train, batch_size, map_fn=datum),
        SupervisedDatasetFromHFDataset(test, len(test), map_fn=datum),
    )


def to_datum(builder: ChatDatasetBuilder, messages: list[Message], usually: TrainOnWhat) -> tinker.Datum:
    """`usually`: what this data is trained on, unless the config says otherwise."""
    common = builder.common_config
    return conversation_to_datum(
        messages, builder.renderer, common.max_length, common.train_on_what or usually
    )


def load_from_hub(name: str) -> Any:
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        if error.name != "datasets":
            raise
        raise ConfigurationError(
            f"{name} is read with the package datasets; type: pip install datasets. Or name a file: dataset=my.jsonl"
        ) from error
    return datasets.load_dataset(name)
