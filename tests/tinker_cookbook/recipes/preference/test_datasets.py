"""Rows as the sets are published, written by hand."""

import json
from typing import Any

import pytest

from tinker_cookbook.exceptions import ConfigurationError, DataFormatError
from tinker_cookbook.preference.types import Comparison, LabeledComparison
from tinker_cookbook.recipes.preference import datasets
from tinker_cookbook.recipes.preference.datasets import (
    COMPARISON_BUILDERS,
    ArenaComparisonBuilder,
    HelpSteer2ComparisonBuilder,
    HelpSteer3ComparisonBuilder,
    HHHComparisonBuilder,
    Tulu38BComparisonBuilder,
    UltraFeedbackComparisonBuilder,
)
from tinker_cookbook.renderers.messages import Message


def user(text: str) -> Message:
    return Message(role="user", content=text)


def says(text: str) -> Message:
    return Message(role="assistant", content=text)


HI = Comparison([user("Hi")], [says("Hello!")], [says("What?")])


def arena(winner: str, first: str = "Hello!", image: bool = False) -> dict:
    def message(role: str, text: str) -> dict:
        return {"role": role, "content": [{"type": "text", "text": text, "image": None, "mimeType": None}]}

    asked = message("user", "Hi")
    if image:
        asked["content"].append({"type": "image", "text": None, "image": "x", "mimeType": "image/png"})
    sides = {"a": [asked, message("assistant", first)], "b": [asked, message("assistant", "What?")]}
    return {"winner": winner, **{f"conversation_{side}": messages for side, messages in sides.items()}}


def helpsteer3(preference: int | None) -> dict:
    return {
        "domain": "general",
        "context": [user("Hi")],
        "response1": "Hello!",
        "response2": "What?",
        "overall_preference": preference,
    }


def tulu(**ratings: float) -> dict:
    return {
        "source": "x",
        "prompt": "Hi",
        "chosen": [user("Hi"), says("Hello!")],
        "rejected": [user("Hi"), says("What?")],
        **ratings,
    }


def ultrafeedback(rating: float) -> dict:
    return {
        "instruction": "Hi",
        "chosen_response": "Hello!",
        "rejected_response": "What?",
        "chosen_avg_rating": 4.0,
        "rejected_avg_rating": rating,
    }


def hhh(first: str, second: str) -> dict:
    return {"chosen": f"\n\nHuman: {first}", "rejected": f"\n\nHuman: {second}"}


@pytest.mark.parametrize(
    ("builder", "row", "label"),
    [
        (HHHComparisonBuilder, hhh("Hi\n\nAssistant: Hello!", "Hi\n\nAssistant: What?"), "A"),
        (HelpSteer3ComparisonBuilder, helpsteer3(-3), "A"),
        (HelpSteer3ComparisonBuilder, helpsteer3(0), "Tie"),
        (HelpSteer3ComparisonBuilder, helpsteer3(1), "B"),
        (ArenaComparisonBuilder, arena("model_a"), "A"),
        (ArenaComparisonBuilder, arena("model_b"), "B"),
        (ArenaComparisonBuilder, arena("tie"), "Tie"),
        (ArenaComparisonBuilder, arena("both_bad"), "Tie"),
        (UltraFeedbackComparisonBuilder, ultrafeedback(2.5), "A"),
        (UltraFeedbackComparisonBuilder, ultrafeedback(4.0), "Tie"),
        (Tulu38BComparisonBuilder, tulu(), "A"),
        (Tulu38BComparisonBuilder, tulu(chosen_rating=4.5, rejected_rating=1.0), "A"),
        (Tulu38BComparisonBuilder, tulu(chosen_rating=4.5, rejected_rating=4.5), "Tie"),
    ],
)
def test_a_row_and_its_label(builder, row, label):
    assert builder().example_to_labeled_comparison(row) == LabeledComparison(HI, label)


@pytest.mark.parametrize(
    ("builder", "row", "reason"),
    [
        (HHHComparisonBuilder, hhh("Hi\n\nAssistant: a", "Ho\n\nAssistant: b"), "the same prompt"),
        (HHHComparisonBuilder, hhh("Hi\n\nAssistant: a", "Hi\n\nAssistant:"), "'rejected' has no answer"),
        (HHHComparisonBuilder, {"chosen": "x"}, "no text in 'rejected'"),
        (HelpSteer3ComparisonBuilder, helpsteer3(None), "no number in 'overall_preference'"),
        (ArenaComparisonBuilder, arena("none"), "'winner' is 'none'"),
        (ArenaComparisonBuilder, arena("model_a", image=True), "images"),
        (ArenaComparisonBuilder, arena("model_a", first="What?"), "the same"),
        (UltraFeedbackComparisonBuilder, ultrafeedback(1) | {"rejected_response": "Hello!"}, "the same"),
    ],
)
def test_a_row_that_cannot_be_used_is_left_out_and_the_reason_said_once(builder, row, reason, caplog):
    made = builder()
    assert made.example_to_labeled_comparison(row) is None
    assert made.example_to_labeled_comparison(row) is None
    assert caplog.text.count(reason) == 1


# --- files and splits -------------------------------------------------------------------------------------


@pytest.fixture
def write(tmp_path):
    def write(rows: list[dict], name: str = "rows.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write


def marked(prompt: str, response: str, helpfulness: int) -> dict:
    return {"prompt": prompt, "response": response, "helpfulness": helpfulness, "verbosity": 2}


def test_answers_with_marks_become_the_best_against_the_worst(write):
    turns = "Hi\n<extra_id_1>Assistant\nHello!\n<extra_id_1>User\nBye"
    rows = [
        *(marked(turns, text, mark) for text, mark in (("so", 1), ("ciao", 4), ("hm", 2))),
        *(marked("even", text, 3) for text in ("a", "b")),
        marked("alone", "x", 4),
    ]
    train, test = HelpSteer2ComparisonBuilder(path=write(rows)).get_labeled_comparisons()
    assert test is None
    by_label = {labeled.label: labeled.comparison for labeled in train}
    assert by_label["A"] == Comparison(
        [user("Hi"), says("Hello!"), user("Bye")], [says("ciao")], [says("so")]
    )
    assert by_label["Tie"].prompt_conversation == [user("even")]
    with pytest.raises(ConfigurationError, match="no prompt with two answers"):
        HelpSteer2ComparisonBuilder(path=write(rows[-1:])).get_labeled_comparisons()


def numbered(count: int) -> list[dict]:
    return [helpsteer3(-1) | {"response1": f"answer {i}"} for i in range(count)]


def answers(labeled: list[LabeledComparison] | None) -> list[Any]:
    return [each.comparison.completion_A[0]["content"] for each in labeled or []]


def test_of_a_file_a_tenth_is_held_out_and_the_order_is_always_the_same(write):
    path = write(numbered(40))
    train, test = HelpSteer3ComparisonBuilder(path=path).get_labeled_comparisons()
    assert (len(train), len(test or [])) == (36, 4)
    assert sorted(answers(train) + answers(test)) == sorted(f"answer {i}" for i in range(40))
    assert answers(train) != sorted(answers(train))
    assert HelpSteer3ComparisonBuilder(path=path).get_labeled_comparisons() == (train, test)


def test_what_is_held_out_may_be_a_file_of_its_own(write):
    builder = HHHComparisonBuilder(
        path=write([hhh("Hi\n\nAssistant: Hello!", "Hi\n\nAssistant: What?")]),
        test_path=write(
            [hhh(f"{i}\n\nAssistant: a", f"{i}\n\nAssistant: b") for i in range(9)], "test.jsonl"
        ),
        test_size=4,
    )
    train, test = builder.get_labeled_comparisons()
    assert (len(train), len(test or [])) == (1, 4)


@pytest.mark.parametrize("name", COMPARISON_BUILDERS)
def test_without_a_path_the_set_is_asked_for_by_its_name_on_the_hub(name, monkeypatch):
    asked = []

    def open_rows(path: str, *, subset: str | None, split: str) -> list[dict]:
        asked.append((path, subset, split))
        return [marked(f"p{i // 2}", f"r{i}", i % 2) for i in range(60)]

    monkeypatch.setattr(datasets, "open_rows", open_rows)
    train, test = COMPARISON_BUILDERS[name](test_size=2).get_train_and_test_datasets()
    assert {path for path, _, _ in asked} == {COMPARISON_BUILDERS[name].hub_name}
    splits = {"hhh": ["train", "test"], "helpsteer3": ["train", "validation"]}.get(name, ["train"])
    assert [split for _, _, split in asked] == splits
    assert {subset for _, subset, _ in asked} == {"preference" if name == "helpsteer3" else None}
    assert test is not None
    assert len(test) == 2
    assert len(train) > 20


def test_a_file_that_is_not_there_is_told():
    with pytest.raises(DataFormatError, match="there is no file"):
        HHHComparisonBuilder(path="./nowhere.jsonl").get_labeled_comparisons()
