"""Supervised fine-tuning."""

from tinker_cookbook.supervised.common import compute_bpb, compute_mean_nll, datum_from_model_input_weights
from tinker_cookbook.supervised.types import (
    ChatDatasetBuilder,
    ChatDatasetBuilderCommonConfig,
    SupervisedDataset,
    SupervisedDatasetBuilder,
)

__all__ = [
    "ChatDatasetBuilder",
    "ChatDatasetBuilderCommonConfig",
    "SupervisedDataset",
    "SupervisedDatasetBuilder",
    "compute_bpb",
    "compute_mean_nll",
    "datum_from_model_input_weights",
]
