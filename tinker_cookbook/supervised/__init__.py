"""Supervised fine-tuning."""

from tinker_cookbook.supervised.common import compute_bpb, compute_mean_nll, datum_from_model_input_weights
from tinker_cookbook.supervised.data import (
    FromConversationFileBuilder,
    HFDatasetSource,
    InterleavedChatDatasetBuilder,
    StreamingSupervisedDatasetFromHFDataset,
    SupervisedDatasetFromHFDataset,
    conversation_to_datum,
)
from tinker_cookbook.supervised.types import (
    ChatDatasetBuilder,
    ChatDatasetBuilderCommonConfig,
    SupervisedDataset,
    SupervisedDatasetBuilder,
)

__all__ = [
    "ChatDatasetBuilder",
    "ChatDatasetBuilderCommonConfig",
    "FromConversationFileBuilder",
    "HFDatasetSource",
    "InterleavedChatDatasetBuilder",
    "StreamingSupervisedDatasetFromHFDataset",
    "SupervisedDataset",
    "SupervisedDatasetBuilder",
    "SupervisedDatasetFromHFDataset",
    "compute_bpb",
    "compute_mean_nll",
    "conversation_to_datum",
    "datum_from_model_input_weights",
]
