"""The page of an iteration, read back, and what goes to the log."""

import dataclasses
import json
import logging
import math
import random

import pytest
import tinker

from tests.tinker_cookbook.rl import sample_rollouts as sample
from tests.tinker_cookbook.utils.markup import Element, read
from tinker_cookbook.rl import report
from tinker_cookbook.rl.report import ReportGroup, log_groups, print_group
from tinker_cookbook.rl.types import Trajectory, TrajectoryGroup
from tinker_cookbook.tokenizer_utils import get_tokenizer
from tinker_cookbook.utils import logtree
from tinker_engine.model import tiny

TOKENIZER = get_tokenizer(tiny.NAME)


def page_of(*groups: ReportGroup) -> Element:
    with logtree.init_trace("Iteration 12") as trace:
        log_groups(groups, TOKENIZER)
    json.dumps(trace.to_dict(), allow_nan=False)
    return read(trace.body_html())


def sums(*answers: str) -> TrajectoryGroup:
    return sample.sums(TOKENIZER, [f"{answer}<|im_end|>" for answer in answers], random.Random(0))


def titles(page: Element) -> list[str]:
    """Of the members, in their order: sections first, folded boxes after."""
    texts = [element.text for element in page.all() if element.tag in ("h3", "summary")]
    return list(dict.fromkeys(text for text in texts if text.startswith("Member")))


def colours(box: Element) -> set[str]:
    return {span.attrs["class"].removeprefix("lt-tok").strip() for span in box.all("span", "lt-tok")}


def test_a_group_has_its_table_and_its_members_the_best_and_the_worst_first():
    page = page_of(
        sample.trained(sums("41", "<think>x</think>42", "<think>x</think>41", "42"), ["a<b>", "c"])
    )
    assert page.all("h2")[0].text == "Group 0 (a<b>, c): mean reward 0.45 of 4"
    rows = [[cell.text for cell in row.all("th") + row.all("td")] for row in page.all("tr")]
    assert rows[0] == ["member", "reward", "advantage", "tokens", "turns", "stopped", "correct", "format"]
    assert [row[:3] for row in rows[1:]] == [
        ["1", "1", "0.55"],
        ["3", "0.9", "0.45"],
        ["2", "0", "-0.45"],
        ["0", "-0.1", "-0.55"],
    ]
    assert [title.split(" · ")[0] for title in titles(page)] == [
        "Member 1, the best: reward 1",
        "Member 0, the worst: reward -0.1",
        "Member 3: reward 0.9",
        "Member 2: reward 0",
    ]
    boxes = page.all("figure", "lt-tokens")
    assert [colours(box) for box in boxes] == [{"p10"}, {"m10"}, {"p9"}, {"m9"}]  # one scale for the group
    assert boxes[0].all("div", "lt-tokens-text")[0].text == "<think>x</think>42<|im_end|>"
    tip = boxes[0].all("span", "lt-tok")[0].attrs["data-tip"]
    assert "advantage 0.55" in tip
    assert "logprob -" in tip


def test_a_prompt_that_all_share_is_shown_once_and_in_no_colour():
    group = sums("42", "41")
    assert page_of(sample.trained(group, [])).text.count("What is 27 + 15?") == 1
    first = group.trajectories_G[0].transitions[0]
    first.ob = tinker.ModelInput.from_ints(TOKENIZER.encode("Another question?"))
    page = page_of(sample.trained(group, []))
    assert (page.text.count("What is 27 + 15?"), page.text.count("Another question?")) == (1, 1)
    assert all("question" not in box.text for box in page.all("figure", "lt-tokens"))


def test_sampled_text_stays_text():
    nasty = "</div><script>alert(1)</script> é日本🙂 & \x00"
    page = page_of(sample.trained(sums(nasty, "42"), ["</h2>"]))
    assert len(page.all("script")) == 1  # the page's own
    assert any(
        "</div><script>alert(1)</script> é日本🙂 & ␀" in box.text for box in page.all("figure", "lt-tokens")
    )


def test_turns_observations_rewards_and_penalties():
    group = sample.guessing(TOKENIZER, [[10, 13], [1, 2]], random.Random(0))
    group.trajectories_G[0].transitions[0].logs["thought"] = "long and <i>wide</i>\n" * 3
    page = page_of(sample.trained(group, [], penalty=0.3))
    captions = [caption.text for caption in page.all("figcaption")]
    best = captions[1 : captions.index("Observation in the end, 15 tokens")]
    assert [caption.split(",")[0] for caption in best] == ["Turn 1", "Observation before turn 2", "Turn 2"]
    assert page.text.count("It is higher.") == 3
    assert any(len(colours(box)) > 1 for box in page.all("figure", "lt-tokens"))  # a penalty for each token
    facts = [box.text for box in page.all("div", "lt-facts")]
    assert "long and <i>wide</i>\n" in facts[0]
    assert "won1" in facts[1]
    assert any("reward from the group-0.1" in text for text in facts)
    assert "Failed rollouts: TimeoutError × 1. The first: no answer in 30 s" in page.text
    assert "Sampled after 11 updates." in page.text


def test_a_turn_kept_out_of_the_loss_is_grey_and_says_so():
    group = sums("42", "41")
    group.trajectories_G[1].transitions[0].metrics["parse_error_masked"] = 1.0
    page = page_of(sample.trained(group, []))
    best, worst = page.all("figure", "lt-tokens")
    assert (colours(best), colours(worst)) == ({"p10"}, {"off"})
    assert "kept out of the loss" in worst.all("span", "lt-tok")[0].attrs["data-tip"]


@pytest.mark.parametrize(
    ("answers", "why"), [(["42"] * 2, "all rewards are the same"), (["1", "42"], "not trained on")]
)
def test_a_group_that_was_not_trained_on_has_no_colours_and_a_reason(answers, why):
    page = page_of(ReportGroup(sums(*answers), []))
    assert page.all("figure", "lt-tokens") == []
    assert f"Tokens are not coloured: {why}" in page.text
    assert "42<|im_end|>" in page.text
    assert "advantage" not in "".join(titles(page))


def test_eight_members_at_most_are_shown_and_all_are_in_the_table():
    group = sums(*["41"] * 5, *["<think>x</think>41"] * 2, *["42"] * 5)
    page = page_of(sample.trained(group, []))
    assert len(page.all("figure", "lt-tokens")) == report.MAX_MEMBERS == 8
    assert len(page.all("tr")) == 13
    assert "4 more members, with rewards between these, are in the table alone." in page.text


def test_long_transcripts_lose_their_middle(monkeypatch):
    monkeypatch.setattr(report, "MAX_ACTION", 10)
    monkeypatch.setattr(report, "MAX_TEXT", 40)
    monkeypatch.setattr(report, "MAX_TURNS", 4)
    group = sample.guessing(TOKENIZER, [[1, 2, 3, 4, 5, 6, 7], [13]], random.Random(0))
    group.trajectories_G[1].transitions[0].logs["long"] = "a" * 30 + "b" * 30
    page = page_of(sample.trained(group, []))
    assert "… 3 turns left out …" in page.text
    assert "Turn 3," not in page.text
    assert "Turn 6," in page.text
    assert "a" * 20 + "\n… 20 characters left out …\n" + "b" * 20 in page.text
    long = sums("0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9", "42")
    (box,) = (
        each
        for each in page_of(sample.trained(long, [])).all("figure", "lt-tokens")
        if "left out" in each.text
    )
    assert len(box.all("span", "lt-tok")) == 11
    assert box.all("span", "lt-tok")[-1].text == "<|im_end|>"


def test_odd_groups():
    empty = TrajectoryGroup([], [], [])
    nothing_done = TrajectoryGroup(
        [Trajectory([], tinker.ModelInput.empty(), "context_overflow")], [-1.0], [{}]
    )
    page = page_of(ReportGroup(empty, []), ReportGroup(nothing_done, []))
    assert [title.text for title in page.all("h2")] == ["Group 0: empty", "Group 1: mean reward -1 of 1"]
    assert "No turn was taken." in page.text
    group = sums("42", "41", "1")
    group.final_rewards_G[0] = math.nan
    assert [title.split(":")[0] for title in titles(page_of(sample.trained(group, [])))] == [
        "Member 1, the best",
        "Member 0, the worst",
        "Member 2",
    ]


def test_numbers_without_bounds_do_not_end_a_run():
    group = sums("42", "41", "1")
    group.final_rewards_G[:] = [math.inf, -math.inf, 0.0]
    group.trajectories_G[0].transitions[0].ac.logprobs[:2] = [math.nan, 1e9]
    page = page_of(sample.trained(group, []))
    assert page.all("h2")[0].text == "Group 0: mean reward nan of 3"
    assert titles(page)[0].startswith("Member 0, the best: reward inf")


def test_a_member_without_logprobs_or_data_is_shown():
    group = sums("42", "41")
    for trajectory in group.trajectories_G:
        trajectory.transitions[0].ac.maybe_logprobs = None
    made = sample.trained(sums("42", "41"), []).data_G
    assert made is not None
    page = page_of(ReportGroup(group, [], [made[0], []]))
    (box,) = page.all("figure", "lt-tokens")
    assert "logprob" not in box.all("span", "lt-tok")[0].attrs["data-tip"]
    assert "41<|im_end|>" in page.text


def test_without_a_report_nothing_is_done():
    log_groups([dataclasses.replace(sample.trained(sums("42"), []), trajectory_group=None)], TOKENIZER)  # pyright: ignore[reportArgumentType]


def test_the_sample_has_all_of_it():
    assert len(page_of(*sample.groups(TOKENIZER)).all("h2")) == 3


def test_some_trajectories_of_a_group_are_printed(caplog):
    answers = ["41", "1\x1b[31m", "2", "42", "<think>x</think>42", "3", "<think>x</think>1"]
    with caplog.at_level(logging.INFO):
        print_group(sums(*answers), TOKENIZER)
    heads = [message.split(", metrics")[0] for message in caplog.messages]
    assert len(heads) == report.MAX_PRINTED
    assert heads[0] == "trajectory 4 of a group of 7, reward 1"
    assert heads[1] == "trajectory 6 of a group of 7, reward 0"
    assert all(head.endswith("reward -0.1") for head in heads[2:])
    assert "\x1b" not in caplog.text
    assert "What is 27 + 15?" in caplog.messages[0]
    assert '{"correct' not in caplog.messages[0]
