"""Data for tests: sums, a few to a batch, in an order that the epoch's seed decides."""

import random

import chz
import tinker

from tinker_cookbook.renderers import Message, Renderer
from tinker_cookbook.supervised.common import datum_from_model_input_weights
from tinker_cookbook.supervised.types import (
    ChatDatasetBuilder,
    ChatDatasetBuilderCommonConfig,
    SupervisedDataset,
)

TINY = "tinker-engine/tiny-chat"


class Sums(SupervisedDataset):
    def __init__(self, renderer: Renderer, batches: int, batch_size: int):
        self._renderer, self._batches, self._size = renderer, batches, batch_size
        self._order = list(range(batches * batch_size))

    def __len__(self) -> int:
        return self._batches

    def set_epoch(self, seed: int = 0) -> None:
        self._order = list(range(len(self._order)))
        random.Random(seed).shuffle(self._order)

    def get_batch(self, index: int) -> list[tinker.Datum]:
        return [self._datum(i) for i in self._order[index * self._size : (index + 1) * self._size]]

    def _datum(self, i: int) -> tinker.Datum:
        messages = [
            Message(role="user", content=f"What is {i} + {i}?"),
            Message(role="assistant", content=f"It is {2 * i}."),
        ]
        return datum_from_model_input_weights(
            *self._renderer.build_supervised_example(messages), reduction="mean"
        )


@chz.chz
class SumsBuilder(ChatDatasetBuilder):
    batches: int = 5
    test_batches: int = 0

    def __call__(self) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        size = self.common_config.batch_size
        test = Sums(self.renderer, self.test_batches, size) if self.test_batches else None
        return Sums(self.renderer, self.batches, size), test


def sums(batches: int = 5, test_batches: int = 0, batch_size: int = 2) -> SumsBuilder:
    common = ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=TINY, renderer_name="chatml", max_length=None, batch_size=batch_size
    )
    return SumsBuilder(common_config=common, batches=batches, test_batches=test_batches)
