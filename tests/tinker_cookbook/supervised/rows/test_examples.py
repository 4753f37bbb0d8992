"""The check of all rows before training starts."""

import json
import logging
import pickle
from typing import Any

import pytest

from tinker_cookbook.exceptions import DataFormatError, DataValidationError
from tinker_cookbook.renderers.messages import TrainOnWhat
from tinker_cookbook.supervised.rows import Examples, open_rows

GOOD = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}], "id": 1}
DEAF = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def check(tmp_path):
    def check(
        *lines: Any,
        what: TrainOnWhat = TrainOnWhat.ALL_ASSISTANT_MESSAGES,
        name: str = "a.jsonl",
        **options: Any,
    ) -> Examples:
        path = tmp_path / name
        path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
        return Examples(open_rows(str(path)), train_on_what=what, **options)

    return check


def test_a_bad_row_at_the_end_stops_before_anything_is_trained(check):
    with pytest.raises(DataFormatError, match=r"a\.jsonl, line 201: .*no assistant message.*on_bad_row=skip"):
        check(*[GOOD] * 200, DEAF)


def test_bad_rows_can_be_skipped_and_are_counted_and_named(check, caplog):
    examples = check(GOOD, "{", DEAF, GOOD, on_bad_row="skip")
    assert (len(examples), examples.skipped) == (2, 2)
    assert examples[1] == GOOD["messages"]
    assert examples.where(1).endswith("a.jsonl, line 4")
    assert "line 2: not JSON" in caplog.text
    assert "line 3: the conversation has no assistant message" in caplog.text
    assert "skipped 2 of 4 rows" in caplog.text


def test_many_bad_rows_do_not_flood_the_log(check, caplog):
    check(GOOD, *[DEAF] * 50, on_bad_row="skip")
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 11
    assert "skipped 50 of 51 rows (only the first 10 are named above)" in caplog.text


def test_nothing_left(check):
    with pytest.raises(DataValidationError, match=r"none of the 2 rows .* no assistant message to learn"):
        check(DEAF, DEAF, on_bad_row="skip")


def test_a_file_with_no_readable_row_names_the_first(check):
    with pytest.raises(DataFormatError, match=r"a\.jsonl, line 1: not JSON"):
        check("{", "{", on_bad_row="skip")


def test_file_rows_format_and_ignored_columns_are_shown(check, caplog):
    with caplog.at_level(logging.INFO):
        check(GOOD, GOOD)
    assert "a.jsonl: 2 rows of conversations (messages); ignored columns: id" in caplog.text


@pytest.mark.parametrize(
    ("what", "row", "reason"),
    [
        (
            TrainOnWhat.LAST_ASSISTANT_TURN,
            {"messages": [*GOOD["messages"], *DEAF["messages"]]},
            "no message is",
        ),
        (TrainOnWhat.CUSTOMIZED, GOOD, "needs `trainable` in every message"),
        (
            TrainOnWhat.ALL_TOKENS,
            {"messages": [{"role": "user", "content": "", "trainable": True}]},
            "CUSTOMIZED",
        ),
    ],
)
def test_what_is_learned_decides_what_is_needed(check, what, row, reason):
    with pytest.raises(DataFormatError, match=reason):
        check(row, what=what)


def test_user_messages_alone_are_fine_when_all_tokens_are_learned(check):
    assert len(check(DEAF, what=TrainOnWhat.ALL_TOKENS)) == 1


def test_files_of_a_folder_have_formats_of_their_own(check, tmp_path):
    check(GOOD)
    (tmp_path / "b.csv").write_text("text\nOnce\n")
    examples = Examples(open_rows(str(tmp_path)), train_on_what=TrainOnWhat.ALL_ASSISTANT_MESSAGES)
    assert examples[0] == GOOD["messages"]
    assert examples[1] == "Once"


def test_examples_can_be_pickled(check):
    assert pickle.loads(pickle.dumps(check(GOOD)))[0] == GOOD["messages"]
