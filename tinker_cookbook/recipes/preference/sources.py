"""Comparisons by name: the small data, sets of the hub, or a file of pairs."""

from tinker_cookbook.preference.pair_files import PairFileBuilder
from tinker_cookbook.preference.preference_datasets import ComparisonDatasetBuilder
from tinker_cookbook.recipes.preference.datasets import COMPARISON_BUILDERS
from tinker_cookbook.recipes.preference.manners import MannersComparisonBuilder

TINY = "tiny"


def comparison_builder(
    name: str, *, test_size: int = 0, seed: int = 0, best_wins: bool = False
) -> ComparisonDatasetBuilder:
    """`test_size` pairs of a file are held out; named sets know by themselves what to hold out.

    `best_wins` is for the small data: a judge has to tell any two styles apart, DPO has to know the best one.
    """
    if name == TINY:
        # There is less to learn about the best style than about the order of all.
        return MannersComparisonBuilder(
            seed=seed, best_wins=best_wins, pairs_per_question=4 if best_wins else 8
        )

    if name in COMPARISON_BUILDERS:
        return COMPARISON_BUILDERS[name]()
    return PairFileBuilder(path=name, test_size=test_size, seed=seed)
