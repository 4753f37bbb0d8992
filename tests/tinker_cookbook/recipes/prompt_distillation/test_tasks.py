"""Labels: which replies come down to one, and which texts are held out."""

import pytest

from tinker_cookbook.exceptions import ConfigurationError, DataFormatError
from tinker_cookbook.recipes.prompt_distillation.tasks import (
    LANGUAGE_ID,
    LANGUAGES,
    ONE_WORD,
    Item,
    get_task,
    read_items,
)


@pytest.mark.parametrize(
    ("reply", "label"),
    [
        ("The words are German. Final Answer: de", "de"),
        ("Final Answer: en? No. **Final Answer:** `fr`", "fr"),
        ("Final Answer: German", None),  # a label must be one of the set
        ("Final Answer: xx", None),
        ("It is German.", None),
        ("", None),
    ],
)
def test_the_teachers_last_answer_counts_if_it_is_a_label(reply, label):
    assert LANGUAGE_ID.read_teacher(reply) == label


@pytest.mark.parametrize(
    ("reply", "label"),
    [("de", "de"), (" de\n", "de"), ("de.", None), ("Final Answer: de", None), ("xx", None)],
)
def test_the_student_says_the_label_alone(reply, label):
    assert LANGUAGE_ID.read_student(reply) == label


@pytest.mark.parametrize(
    ("reply", "label"),
    [
        ("Ostra.", "Ostra"),
        ("Baker.", "baker"),
        ("Dragon.", None),
        ("Tavi is a baker.", None),
        ("Baker", None),
    ],
)
def test_one_word(reply, label):
    assert ONE_WORD.read_teacher(reply) == label
    assert ONE_WORD.read_student(reply) == label


@pytest.mark.parametrize("task", [ONE_WORD, LANGUAGE_ID])
def test_items_have_labels_of_the_task_and_none_is_in_both_splits(task):
    train, test = ({item.text for item in task.items(split)} for split in ("train", "test"))
    assert train
    assert test
    assert not train & test
    for item in [*task.items("train"), *task.items("test")]:
        assert item.label in task.labels
        assert task.read_student(task.write(item.label)) == item.label


def test_each_language_has_texts_to_learn_and_to_be_tested_with():
    for items, count in ((LANGUAGE_ID.items("train"), 8), (LANGUAGE_ID.items("test"), 2)):
        labels = [item.label for item in items]
        assert {label: labels.count(label) for label in LANGUAGES} == dict.fromkeys(LANGUAGES, count)


def test_texts_with_and_without_labels(tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("de\tGuten Tag\n\nHello there\n")
    assert read_items(file) == [Item("Guten Tag", "de"), Item("Hello there", None)]
    file.write_text("Hello\nde\t\n")
    with pytest.raises(DataFormatError, match=r"texts\.txt:2"):
        read_items(file)
    with pytest.raises(ConfigurationError, match="no file"):
        read_items(tmp_path / "missing.txt")


def test_a_task_that_does_not_exist():
    with pytest.raises(ConfigurationError, match="one_word or language_id"):
        get_task("two_words")
