"""What a person who waits is told, in a line for each step: there is no terminal here."""

import logging

import pytest

from tinker_cookbook.utils.progress import Progress


@pytest.mark.parametrize(
    ("headline", "words"),
    [
        ("env/all/reward/total", "reward 0.833"),
        ("train_mean_nll", "train_mean_nll 0.833"),
        ("test/nll", "nll 0.833"),
        ("total", "total 0.833"),
    ],
)
def test_a_line_tells_the_metric_the_speed_and_the_time_left(headline, words, caplog):
    times = iter([0.0, *[10.0] * 9])
    progress = Progress(2, 12, headline, clock=lambda: next(times))
    with caplog.at_level(logging.INFO):
        progress.update(4, {headline: 0.83333}, tokens=12_340)
    progress.close()
    assert caplog.messages == [f"step 4 of 12: {words}, 1,234 tokens/s, 40 s left"]


def test_a_step_without_the_metric_has_a_line_too(caplog):
    times = iter([0.0, *[1.0] * 9])
    progress = Progress(0, 2, "env/all/reward/total", clock=lambda: next(times))
    with caplog.at_level(logging.INFO):
        progress.update(1, {}, tokens=0)
    progress.close()
    assert caplog.messages == ["step 1 of 2: 1 s left"]
