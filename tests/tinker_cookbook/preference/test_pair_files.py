import csv
import json
import os
from pathlib import Path

import pytest

from tests.server import ROOT
from tinker_cookbook.exceptions import ConfigurationError, DataFormatError, DataValidationError
from tinker_cookbook.preference.conversations import transcript
from tinker_cookbook.preference.pair_files import PairFileBuilder, open_pairs
from tinker_cookbook.preference.types import Comparison, LabeledComparison, LabeledExample
from tinker_cookbook.renderers.messages import Message


def user(text: str) -> Message:
    return Message(role="user", content=text)


def says(text: str) -> Message:
    return Message(role="assistant", content=text)


SYSTEM = Message(role="system", content="Be kind.")
WANTED = LabeledComparison(Comparison([user("Hi")], [says("Hello!")], [says("What?")]), "A")


@pytest.fixture
def write(tmp_path):
    def write(*rows: object, name: str = "my.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
        return str(path)

    return write


# --- formats ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Hi", "chosen": "Hello!", "rejected": "What?"},
        {"instruction": "Hi", "input": "", "chosen": "Hello!", "rejected": "What?"},
        {"prompt": [user("Hi")], "chosen": [says("Hello!")], "rejected": [says("What?")]},
        {"chosen": [user("Hi"), says("Hello!")], "rejected": [user("Hi"), says("What?")]},
        {
            "prompt": "Hi",
            "chosen": [user("Hi"), says("Hello!")],
            "rejected": [user("Hi"), says("What?")],
            "messages": [user("Hi"), says("Hello!")],
        },
        {
            "chosen": "\n\nHuman: Hi\n\nAssistant: Hello!",
            "rejected": "\n\nHuman: Hi\n\nAssistant: What?",
        },
        {"prompt": "\n\nHuman: Hi\n\nAssistant:", "chosen": "Hello!", "rejected": "What?"},
        {
            "conversations": [{"from": "human", "value": "Hi"}],
            "chosen": {"from": "gpt", "value": "Hello!"},
            "rejected": {"from": "gpt", "value": "What?"},
        },
        {
            "comparison": {
                "prompt_conversation": [user("Hi")],
                "completion_A": [says("Hello!")],
                "completion_B": [says("What?")],
            },
            "label": "A",
        },
        {"prompt": "Hi", "ranking": ["Hello!", "What?"]},
        {"prompt": "Hi", "responses": ["What?", "Hello!"], "scores": [1, 4.5]},
    ],
)
def test_all_formats_say_the_same(write, row):
    pairs = open_pairs(write(row))
    assert pairs.comparisons == [WANTED]
    assert not pairs.left_out


def test_the_prompt_may_have_turns_a_system_message_and_an_input(write):
    turns = '\n\nHuman: Hi\n\nAssistant: Hello!\n\nHuman: The "Human:" in\n\nthe text\n\nAssistant: '
    (labeled,) = open_pairs(write({"chosen": turns + "Yes", "rejected": turns + "No"})).comparisons
    assert labeled.comparison.prompt_conversation == [
        user("Hi"),
        says("Hello!"),
        user('The "Human:" in\n\nthe text'),
    ]
    row = {"system": "Be kind.", "instruction": "Add", "input": "1 2", "chosen": "3", "rejected": "4"}
    (labeled,) = open_pairs(write(row)).comparisons
    assert labeled.comparison.prompt_conversation == [SYSTEM, user("Add\n\n1 2")]
    row = {"system": "x", "prompt": [SYSTEM, user("Hi")], "chosen": "3", "rejected": "4"}
    (labeled,) = open_pairs(write(row)).comparisons
    assert labeled.comparison.prompt_conversation == [SYSTEM, user("Hi")]


def test_a_transcript_begins_with_a_turn():
    assert transcript("Say \n\nHuman: hi") is None
    assert transcript("Human: hi") == [user("hi")]


@pytest.mark.parametrize(
    ("row", "labels"),
    [
        ({"prompt": "p", "ranking": ["best", "mid", "worst"]}, ["A", "A", "A"]),
        ({"prompt": "p", "responses": ["mid", "best", "worst"], "scores": [2, 2, 1]}, ["Tie", "A", "A"]),
    ],
)
def test_a_ranked_list_is_all_its_pairs_and_equal_scores_are_ties(write, row, labels):
    pairs = open_pairs(write(row))
    assert [each.label for each in pairs.comparisons] == labels
    sides = [
        (each.comparison.completion_A[0]["content"], each.comparison.completion_B[0]["content"])
        for each in pairs.comparisons
    ]
    first, second, third = row.get("ranking") or row["responses"]
    assert sides == [(first, second), (first, third), (second, third)]


def test_ties_are_no_wins(write):
    tied = {"prompt": "p", "chosen": "a", "rejected": "b", "score_chosen": 7.0, "score_rejected": 7.0}
    won = tied | {"score_rejected": 6.0}
    pairs = open_pairs(write(tied, won))
    assert [each.label for each in pairs.comparisons] == ["Tie", "A"]
    assert pairs.num_ties == 1
    assert "1 pairs with a winner, 1 ties" in pairs.report()
    assert len(pairs.marked()) == 2  # the tie says of neither answer that it is good or bad


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Hi", "completion": "Hello!", "label": True},
        {"prompt": [user("Hi")], "completion": [says("Hello!")], "label": 1},
        {"messages": [user("Hi"), says("Hello!")], "label": True},
        {
            "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}],
            "kto_tag": True,
        },
        {"instruction": "Hi", "output": "Hello!", "kto_tag": "true"},
    ],
)
def test_marked_answers(write, row):
    mark = "label" if "label" in row else "kto_tag"
    pairs = open_pairs(write(row, row | {mark: False}))
    assert pairs.examples == [
        LabeledExample([user("Hi")], [says("Hello!")], True),
        LabeledExample([user("Hi")], [says("Hello!")], False),
    ]
    assert "1 wanted and 1 unwanted" in pairs.report()


def test_json_lists_and_csv_files(write, tmp_path):
    row = {"prompt": "Hi", "chosen": "Hello!", "rejected": "What?"}
    path = tmp_path / "my.json"
    path.write_text(json.dumps([row]))
    assert open_pairs(str(path)).comparisons == [WANTED]
    path = tmp_path / "my.csv"
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["prompt", "chosen", "rejected"])
        table.writerow([json.dumps([user("Hi")]), json.dumps([says("Hello!")]), "What?"])
    assert open_pairs(str(path)).comparisons == [WANTED]


# --- rows that do not fit ---------------------------------------------------------------------------------

GOOD = {"prompt": "Hi", "chosen": "Hello!", "rejected": "What?"}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("{", "not JSON"),
        (
            {"prompt": "Hi", "chosen": "Hello!"},
            "it has the columns chosen, prompt, and needs chosen and rejected",
        ),
        (GOOD | {"rejected": None}, "no 'rejected'"),
        (GOOD | {"chosen": " "}, "'chosen' is empty"),
        (GOOD | {"chosen": 3}, "'chosen' must be a list of messages, not int"),
        (GOOD | {"rejected": "Hello!"}, "are the same"),
        ({"chosen": "Hello!", "rejected": "What?"}, "no prompt"),
        (GOOD | {"prompt": "  "}, "'prompt' is empty"),
        (GOOD | {"prompt": [user("Hi"), says("Ho")]}, "the prompt ends with an answer"),
        (
            GOOD | {"chosen": [user("Hi")]},
            "'chosen' must be an answer of the assistant, and has a message of user",
        ),
        (
            {"chosen": "\n\nHuman: Hi\n\nAssistant: a", "rejected": "\n\nHuman: Ho\n\nAssistant: b"},
            "do not answer the same prompt",
        ),
        (
            {"chosen": [user("Hi"), says("a"), user("?"), says("b")], "rejected": [user("Hi"), says("c")]},
            "do not answer the same prompt",
        ),
        (
            {"chosen": "\n\nHuman: Hi\n\nAssistant: a", "rejected": "\n\nHuman: Hi\n\nAssistant:"},
            "'rejected' has no answer at its end",
        ),
    ],
)
def test_a_row_that_does_not_fit_is_left_out_with_its_line_and_reason(write, row, reason):
    pairs = open_pairs(write(GOOD, "", row))
    assert pairs.comparisons == [WANTED]
    (left_out,) = pairs.left_out
    assert left_out.where.endswith("my.jsonl, line 3")
    assert reason in left_out.reason
    assert f"line 3: {left_out.reason}" in pairs.report()


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "p", "ranking": ["a"]}, "two answers or more"),
        ({"prompt": "p", "ranking": [2, 1]}, "the answers themselves"),
        ({"prompt": "p", "ranking": ["a", "b", "a"]}, "answers 1 and 3 are the same"),
        ({"prompt": "p", "ranking": ["a", "b"], "scores": [1]}, "a list of 2 numbers"),
        ({"prompt": "p", "completion": "a", "label": "good"}, "must be true or false, not 'good'"),
        ({"messages": [user("Hi")], "label": True}, "must end with an assistant's answer"),
        ({"comparison": {}, "label": "C"}, "A, B, Tie, not 'C'"),
        ({"comparison": {}, "label": "A"}, "no 'prompt_conversation'"),
    ],
)
def test_a_file_without_a_row_that_fits_is_an_error(write, row, reason):
    with pytest.raises(DataFormatError, match=r"none of the 1 rows of .*my.jsonl, line 1: .*") as caught:
        open_pairs(write(row))
    assert reason in str(caught.value)


def test_many_rows_are_counted_and_a_few_named(write):
    report = open_pairs(write(GOOD, *[GOOD | {"chosen": ""}] * 30, {"prompt": "x"})).report()
    assert "31 rows are left out" in report
    assert report.count("line ") == 5
    assert "'chosen' is empty (30)" in report


def test_mixed_and_unknown_formats_are_told(write):
    with pytest.raises(
        DataFormatError, match=r"mixes formats: 2 of pairs, the first .*line 1; 1 of ranked lists, .*3"
    ):
        open_pairs(write(GOOD, GOOD, {"prompt": "p", "ranking": ["a", "b"]}))
    with pytest.raises(DataFormatError, match=r"has the columns text, .* Accepted are .*chosen and rejected"):
        open_pairs(write({"text": "x"}))
    with pytest.raises(DataFormatError, match="there is no file"):
        open_pairs("nowhere.jsonl")


# --- as data ----------------------------------------------------------------------------------------------


def test_a_prompt_is_held_out_with_all_its_answers(write):
    path = write(*({"prompt": f"p{i // 2}", "ranking": [f"a{i}", "b", "c"]} for i in range(20)))
    builder = PairFileBuilder(path=path, test_size=7)
    train, test = builder.get_labeled_comparisons()
    assert test is not None
    assert (len(train), len(test)) == (48, 12)  # prompts have six pairs each
    prompts = [{str(each.comparison.prompt_conversation) for each in some} for some in (train, test)]
    assert not prompts[0] & prompts[1]
    assert PairFileBuilder(path=path, test_size=7).get_labeled_comparisons() == (train, test)
    assert PairFileBuilder(path=path, test_size=7, seed=1).get_labeled_comparisons() != (train, test)
    marked, test_marked = builder.get_labeled_examples()
    assert test_marked is not None
    assert len(marked) + len(test_marked) == 30  # of each prompt the two best answers and the worst


def test_an_answer_that_won_and_lost_is_neither_wanted_nor_unwanted(write):
    pairs = open_pairs(write({"prompt": "p", "ranking": ["best", "middling", "worse", "worst"]}))
    assert [(each.completion[0]["content"], each.is_desirable) for each in pairs.marked()] == [
        ("best", True),
        ("worst", False),
    ]


def test_what_is_held_out_may_be_a_file(write):
    test_path = write(GOOD, name="test.jsonl")
    builder = PairFileBuilder(path=write(GOOD | {"prompt": "Ho"}), test_path=test_path)
    train, test = builder.get_labeled_comparisons()
    assert (len(train), test) == (1, [WANTED])
    with pytest.raises(ConfigurationError, match="one way to hold out"):
        PairFileBuilder(path="x", test_path="y", test_size=1)


def test_something_must_be_left_to_train_on_and_it_must_be_pairs(write):
    with pytest.raises(DataValidationError, match="test_size=1 leaves nothing"):
        PairFileBuilder(path=write(GOOD), test_size=1).get_labeled_comparisons()
    marked = PairFileBuilder(path=write({"prompt": "p", "completion": "c", "label": True}))
    with pytest.raises(DataFormatError, match="loss=kto"):
        marked.get_labeled_comparisons()
    assert len(marked.get_labeled_examples()[0]) == 1


# --- files that are about ---------------------------------------------------------------------------------

# They are not part of this repository: TINKER_DATA names their folder, else it is looked for beside the repository.
PUBLISHED = Path(os.environ.get("TINKER_DATA") or ROOT.parent / "shared" / "assets" / "data")


@pytest.mark.parametrize(
    ("name", "comparisons", "examples", "left_out"),
    [
        ("hh_rlhf/harmless-base.test.jsonl.gz", 2308, 0, 4),
        ("llama_factory/dpo_en_demo.json", 300, 0, 0),
        ("llama_factory/kto_en_demo.json", 0, 300, 0),
    ],
)
def test_published_files(name, comparisons, examples, left_out):
    if not (PUBLISHED / name).exists():
        pytest.skip(f"there is no {name} in TINKER_DATA")
    pairs = open_pairs(str(PUBLISHED / name))
    assert (len(pairs.comparisons), len(pairs.examples), len(pairs.left_out)) == (
        comparisons,
        examples,
        left_out,
    )
