"""Every estimator against numbers worked out by hand."""

import pytest
import torch

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.rl.advantages import ESTIMATORS, get_estimator


def estimate(name: str, rewards: list[float], lengths: list[int] | None = None) -> list[float]:
    lengths = lengths or [1] * len(rewards)
    rewards_G, lengths_G = torch.tensor(rewards).double(), torch.tensor(lengths).double()
    advantages_G = get_estimator(name)(rewards_G, lengths_G)
    assert rewards_G.tolist() == rewards, "an estimator leaves what it is given as it is"
    return advantages_G.tolist()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("group_mean", [-1.0, -1.0, 2.0]),  # the mean is 2
        ("group_mean_std", [-1 / 2**0.5, -1 / 2**0.5, 2 / 2**0.5]),  # the variance (1 + 1 + 4) / 3 = 2
        ("rloo", [-1.5, -1.5, 3.0]),  # 1 - (1 + 4)/2 twice, 4 - (1 + 1)/2
        ("leave_one_out", [-1.5, -1.5, 3.0]),
        ("length_normalised", [-2.0, -1.0, 4 / 3]),  # times 4/2, 4/4 and 4/6
        ("reward", [1.0, 1.0, 4.0]),
    ],
)
def test_three_members(name, expected):
    assert estimate(name, [1.0, 1.0, 4.0], [2, 4, 6]) == pytest.approx(expected, abs=1e-5)


def test_names_are_all_tested():
    assert ESTIMATORS.keys() == {
        *("group_mean", "group_mean_std", "rloo", "leave_one_out", "length_normalised", "reward")
    }


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_a_group_of_one_and_a_constant_group_are_finite(name):
    has_baseline = name != "reward"
    assert estimate(name, [3.0]) == [0.0 if has_baseline else 3.0]
    assert estimate(name, [3.0, 3.0], [0, 5]) == [0.0 if has_baseline else 3.0] * 2


def test_nothing_was_sampled_and_still_no_division_by_zero():
    assert estimate("length_normalised", [1.0, 0.0], [0, 0]) == [0.5, -0.5]


def test_an_unknown_one_is_refused_with_those_there_are():
    with pytest.raises(ConfigurationError, match=r"'grpo'.*group_mean_std"):
        get_estimator("grpo")
