"""What a trainer takes its data from."""

import functools
import logging

import chz
import tinker

from tinker_cookbook import renderers
from tinker_cookbook.tokenizer_utils import Tokenizer, get_tokenizer

logger = logging.getLogger(__name__)


class SupervisedDataset:
    """Batches by index. The order of an epoch depends on its seed alone, not on what was read before."""

    def get_batch(self, index: int) -> list[tinker.Datum]:
        """The datums of a step, as the epoch orders them."""
        raise NotImplementedError

    def __len__(self) -> int:
        """Batches of an epoch."""
        raise NotImplementedError

    def set_epoch(self, seed: int = 0) -> None:
        """Puts the data into the order of an epoch; called before each of them, with its number."""
        logger.warning(
            "%s does not shuffle: every epoch has the same order, for it has no set_epoch",
            type(self).__name__,
        )

    def metrics(self) -> dict[str, float]:
        """What is to be logged of the data itself, such as how much was cut."""
        return {}


@chz.chz
class SupervisedDatasetBuilder:
    """A config that builds the data: what is trained on, and what is held out (or None)."""

    def __call__(self) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        raise NotImplementedError


@chz.chz
class ChatDatasetBuilderCommonConfig:
    """What all data of conversations needs to know."""

    model_name_for_tokenizer: str = chz.field(doc="Model whose tokenizer is used")
    renderer_name: str = chz.field(doc="How conversations are written")
    max_length: int | None = chz.field(doc="Tokens of an example, beyond which it is cut; None: never cut")
    batch_size: int = chz.field(doc="Examples of a batch")
    train_on_what: renderers.TrainOnWhat | None = chz.field(
        default=None, doc="Which messages are learned; None: as the data set says"
    )


@chz.chz
class ChatDatasetBuilder(SupervisedDatasetBuilder):
    """A builder over conversations: has the tokenizer and the renderer of its model."""

    common_config: ChatDatasetBuilderCommonConfig

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        return get_tokenizer(self.common_config.model_name_for_tokenizer)

    @functools.cached_property
    def renderer(self) -> renderers.Renderer:
        name = self.common_config.model_name_for_tokenizer
        return renderers.get_renderer(self.common_config.renderer_name, self.tokenizer, model_name=name)
