"""Data for supervised fine-tuning: the names that scripts import."""

from tinker_cookbook.supervised.conversation_files import FromConversationFileBuilder
from tinker_cookbook.supervised.example_dataset import ExampleDataset
from tinker_cookbook.supervised.hf_datasets import (
    StreamingSupervisedDatasetFromHFDataset,
    SupervisedDatasetFromHFDataset,
)
from tinker_cookbook.supervised.interleaved import HFDatasetSource, InterleavedChatDatasetBuilder
from tinker_cookbook.supervised.rendering import Cuts, ExampleRenderer, conversation_to_datum

__all__ = [
    "Cuts",
    "ExampleDataset",
    "ExampleRenderer",
    "FromConversationFileBuilder",
    "HFDatasetSource",
    "InterleavedChatDatasetBuilder",
    "StreamingSupervisedDatasetFromHFDataset",
    "SupervisedDatasetFromHFDataset",
    "conversation_to_datum",
]
