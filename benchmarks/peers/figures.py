"""From the answers of the workers to what is kept: medians, spread, ratios round by round."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from benchmarks.peers.workloads import OURS, Workload

Figures = dict[str, Any]


def contestant_figures(answers: Sequence[Figures], tokens: int, peak_mb: Sequence[float]) -> Figures:
    seconds = [answer["seconds"] for answer in answers]
    figures: Figures = {
        "seconds": round(median(seconds), 4),
        "seconds_least_and_most": [round(min(seconds), 4), round(max(seconds), 4)],
        "seconds_by_round": [round(value, 4) for value in seconds],
        "tokens_per_second": round(tokens / median(seconds), 1),
        "cpu_seconds": round(median(answer["cpu_seconds"] for answer in answers), 3),
        "peak_mb": round(sum(peak_mb)),
        "peak_mb_by_process": list(peak_mb),
    }
    for name in ("mean_logprob", "loss", "reward"):  # not for the record: to see that all did the same
        if name in answers[0]:
            figures[name] = round(fmean(answer[name] for answer in answers), 4)
    return figures


def ratios(contestants: Mapping[str, Figures], workload: Workload) -> dict[str, Figures]:
    """How many times as fast ours is, and its share of the other's memory."""
    ours = contestants[OURS]
    found: dict[str, Figures] = {}
    for name, other in contestants.items():
        if name == OURS:
            continue
        pairs = zip(other["seconds_by_round"], ours["seconds_by_round"], strict=True)
        by_round = [theirs / own for theirs, own in pairs]
        found[name] = {
            "times_as_fast": round(median(by_round), 3),
            "least_and_most": [round(min(by_round), 3), round(max(by_round), 3)],
            "share_of_memory": round(ours["peak_mb"] / other["peak_mb"], 3),
        }
        if name in workload.goals:
            found[name]["goal_times_as_fast"] = workload.goals[name]
        if name in workload.memory_goals:
            found[name]["goal_share_of_memory"] = workload.memory_goals[name]
    return found


def agreement(warm_ups: Mapping[str, Figures]) -> dict[str, Figures]:
    """Of each other one, against ours: equal greedy tokens up to the first that differs, and the first loss."""
    ours = warm_ups[OURS]
    found: dict[str, Figures] = {}
    for name, other in warm_ups.items():
        if name == OURS:
            continue
        found[name] = {}
        if "samples" in ours:
            found[name]["equal_greedy_tokens"] = _equal(ours["samples"], other["samples"])
            found[name]["of"] = sum(len(tokens) for tokens in ours["samples"])
        if "loss" in ours:
            found[name]["difference_of_first_loss"] = abs(ours["loss"] - other["loss"])
    return found


def _equal(ours: list[list[int]], theirs: list[list[int]]) -> int:
    """After a difference the contexts are others, and nothing can be compared."""
    count = 0
    for own, other in zip(ours, theirs, strict=True):
        for a, b in zip(own, other, strict=True):
            if a != b:
                break
            count += 1
    return count
