"""Preferences: comparisons of two answers, models that judge them, and data of both."""

from tinker_cookbook.preference.preference_datasets import ComparisonDatasetBuilder
from tinker_cookbook.preference.types import Comparison, LabeledComparison

__all__ = ["Comparison", "ComparisonDatasetBuilder", "LabeledComparison"]
