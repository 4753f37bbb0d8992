import pytest

from tests.tinker_cookbook.preference.pairs import Given, common, labeled, learned, pairs, polite, singles
from tinker_cookbook.exceptions import ConfigurationError, DataValidationError
from tinker_cookbook.preference.dpo_datasets import IS_DESIRABLE, LabeledExamplesFromComparisons
from tinker_cookbook.preference.types import Comparison, LabeledComparison
from tinker_cookbook.renderers import Message

END = "<|im_end|>"
PROMPT = [Message(role="user", content="ask")]
NO = [Message(role="assistant", content="no")]
BY_USER = LabeledComparison(Comparison(PROMPT, [Message(role="user", content="mine")], NO), "A")


def shown(dataset, index: int) -> list[str]:
    return [learned(datum) for datum in dataset.get_batch(index)]


def test_a_batch_has_so_many_pairs_as_neighbours_with_the_chosen_first():
    """Behaviour 86, whichever side was better."""
    dataset, test = pairs([polite(i) for i in range(9)])()
    assert len(dataset) == 2
    assert test is None
    assert shown(dataset, 0) == [text + END for i in range(4) for text in (f"Happily: {i + 1}.", f"{i + 1}")]


def test_ties_and_rows_that_say_nothing_are_left_out_and_counted(caplog):
    """W17."""
    rows = [
        labeled("q", "x", "y", "Tie"),
        *(polite(i) for i in range(4)),
        None,
        labeled("q", "same", "same"),
        labeled("q", "y", "x", "Tie"),
    ]
    dataset, _ = pairs(rows)()
    assert len(dataset.get_batch(0)) == 8
    assert all("x" not in text and "y" not in text.replace("Happily", "") for text in shown(dataset, 0))
    assert "4 of 8 rows are left out: 2 ties; 1 no comparisons; 1 with twice the same answer" in caplog.text
    assert dataset.metrics() == {"data/left_out": 4.0}


@pytest.mark.parametrize("long_side", ["chosen", "rejected"])
def test_a_pair_that_is_too_long_goes_with_both_sides(long_side, caplog):
    answers = ("so " * 80, "b") if long_side == "chosen" else ("a", "so " * 80)
    dataset, _ = pairs([labeled("q", *answers), *(polite(i) for i in range(4))], max_length=60)()
    assert [text for text in shown(dataset, 0) if "so" in text or text == "b" + END] == []
    assert "1 longer than max_length=60" in caplog.text
    batch = dataset.get_batch(0)
    assert len(batch) == 8
    assert all(learned(datum).endswith(END) for datum in batch), "nothing is cut"


def test_an_epoch_has_an_order_of_its_own_that_no_reading_changes():
    """W16."""
    rows = [polite(i) for i in range(12)]
    first, second = pairs(rows)()[0], pairs(rows)()[0]
    first.set_epoch(3)
    forwards = [shown(first, i) for i in range(3)]
    second.set_epoch(7)
    second.get_batch(1)
    second.set_epoch(3)
    assert [shown(second, i) for i in (2, 0, 1)] == [forwards[i] for i in (2, 0, 1)]
    first.set_epoch(4)
    assert [shown(first, i) for i in range(3)] != forwards
    with pytest.raises(IndexError, match="batch 3 of 3"):
        first.get_batch(3)


def test_held_out_pairs_are_all_used():
    _, test = pairs([polite(i) for i in range(4)], [polite(i) for i in range(6)])()
    assert test is not None
    assert [len(test.get_batch(i)) for i in range(len(test))] == [8, 4]


def test_a_completion_of_several_messages_counts_whole():
    turn = [
        Message(role="assistant", content="let me see"),
        Message(role="tool", content="sum: 3"),
        Message(role="assistant", content="it is 3"),
    ]
    chosen = pairs([LabeledComparison(Comparison(PROMPT, turn, NO), "A")], batch_size=1)()[0].get_batch(0)[0]
    assert "let me see" in learned(chosen)
    assert "it is 3" in learned(chosen)
    assert "sum: 3" not in learned(chosen)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "no pairs to learn from"),
        ([labeled("q", "x", "y", "Tie")] * 3, "of 3 rows, 3 ties"),
        ([polite(0), labeled("q", "x", "")], "row 1: a completion is empty"),
        ([LabeledComparison(Comparison(PROMPT, [], []), "A")], "twice the same"),
        ([polite(0)] * 3, "3 pairs make no whole batch: give more of them, or batch_size=3"),
        ([polite(0), None, BY_USER], "row 2: a completion must end with a message of the assistant"),
    ],
)
def test_data_that_cannot_be_learned_from_is_refused(rows, words):
    with pytest.raises(DataValidationError, match=words):
        pairs(rows)()


def test_a_held_out_set_without_pairs_is_named_as_such():
    with pytest.raises(DataValidationError, match="no held-out pairs"):
        pairs([polite(i) for i in range(4)], [labeled("q", "x", "y", "Tie")])()


def test_single_examples_say_whether_they_are_wanted(caplog):
    dataset, test = singles([polite(0), labeled("q", "x", "y", "Tie"), polite(1)], [polite(5)])()
    batch = dataset.get_batch(0)
    said = {learned(datum): datum.loss_fn_inputs[IS_DESIRABLE].tolist() for datum in batch}
    assert said == {
        f"Happily: 1.{END}": [1.0],
        f"1{END}": [0.0],
        f"Happily: 2.{END}": [1.0],
        f"2{END}": [0.0],
    }
    assert "1 of 3 comparisons are left out: ties" in caplog.text
    assert test is not None
    assert len(test.get_batch(0)) == 2


def test_both_ways_round_gives_single_examples_once():
    builder = LabeledExamplesFromComparisons(comparison_builder=Given(train=[polite(0)], swap=True))
    assert len(builder.get_labeled_examples()[0]) == 2


def test_a_batch_of_one_single_example_is_refused():
    with pytest.raises(ConfigurationError, match="at least 2"):
        singles([polite(0)], batch_size=1)


def test_a_batch_size_of_nothing_is_refused():
    with pytest.raises(ConfigurationError, match="batch_size=0"):
        pairs([polite(0)], batch_size=0)()
    assert common().batch_size == 4
