import json

import pytest

from tests.tinker_cookbook.rl.tiny import MODEL, text_of
from tinker_cookbook.exceptions import DataFormatError, DataValidationError
from tinker_cookbook.preference.preference_datasets import (
    ChatDatasetBuilderFromComparisons,
    ComparisonBuilderFromJsonl,
)
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig


def row(number: int, label: str = "A") -> dict:
    sides = {"prompt_conversation": f"ask {number}", "completion_A": "aaa", "completion_B": "bbb"}
    return {
        "comparison": {
            key: [{"role": "user" if key.startswith("prompt") else "assistant", "content": text}]
            for key, text in sides.items()
        },
        "label": label,
    }


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "rows.jsonl"
    rows = [*(row(i) for i in range(12)), {"label": "A"}, {"comparison": {}, "label": "B"}]
    file.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return str(file)


def judge_data(path: str, *, swap: bool = False, max_length: int | None = None, batch_size: int = 4):
    config = ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=MODEL, renderer_name="chatml", max_length=max_length, batch_size=batch_size
    )
    builder = ComparisonBuilderFromJsonl(train_path=path, test_path=path)
    return ChatDatasetBuilderFromComparisons(common_config=config, comparison_builder=builder, swap=swap)()


def shown(dataset, index: int) -> list[str]:
    """What is read, and the label that is learned."""
    return [
        text_of([*datum.model_input.to_ints(), datum.loss_fn_inputs["target_tokens"].tolist()[-1]])
        for datum in dataset.get_batch(index)
    ]


def test_rows_without_their_keys_are_left_out(path, caplog):
    train, test = ComparisonBuilderFromJsonl(train_path=path).get_labeled_comparisons()
    assert len(train) == 12
    assert test is None
    assert "2 of 14 rows are no comparisons" in caplog.text
    assert train[3].comparison.prompt_conversation == [{"role": "user", "content": "ask 3"}]


def test_swap_gives_both_ways(path):
    train, _ = ComparisonBuilderFromJsonl(train_path=path, swap=True).get_labeled_comparisons()
    assert [each.label for each in train[:2]] == ["A", "B"]
    assert train[1] == train[0].swap()


def test_a_label_that_is_none_is_an_error(path):
    builder = ComparisonBuilderFromJsonl(train_path=path)
    with pytest.raises(DataFormatError, match="A, B, Tie"):
        builder.example_to_labeled_comparison(row(0, label="both"))


def test_a_batch_is_the_same_whatever_was_read_before(path):
    """W16: also which way round each comparison is shown."""
    first, _ = judge_data(path)
    second, _ = judge_data(path)
    forwards = [shown(first, i) for i in range(3)]
    assert [shown(second, i) for i in (2, 1, 0)] == forwards[::-1]
    assert shown(first, 1) == forwards[1]
    first.set_epoch(5)
    second.set_epoch(5)
    assert shown(first, 0) == shown(second, 0) != forwards[0]


def test_without_swap_about_half_are_turned_and_the_label_with_them(path):
    dataset, _ = judge_data(path, batch_size=12)
    texts = shown(dataset, 0)
    turned = [text.index("bbb") < text.index("aaa") for text in texts]
    assert 0 < sum(turned) < 12
    assert [text[-1] for text in texts] == ["B" if each else "A" for each in turned]


def test_with_swap_each_is_learned_both_ways(path):
    dataset, _ = judge_data(path, swap=True)
    assert [text[-1] for text in shown(dataset, 0)] == ["A", "B"] * 4


def test_all_that_is_held_out_is_one_batch_however_large_a_batch_is(path):
    for batch_size in (4, 14):
        _, test = judge_data(path, batch_size=batch_size)
        assert test is not None
        assert len(test) == 1
        assert len(test.get_batch(0)) == 12


@pytest.mark.parametrize("swap", [False, True])
def test_a_tie_is_learned_as_one(tmp_path, swap):
    """W17: whichever way round it is shown."""
    file = tmp_path / "ties.jsonl"
    file.write_text("".join(json.dumps(row(i, label="Tie")) + "\n" for i in range(4)))
    dataset, _ = judge_data(str(file), swap=swap)
    ends = [text[-1] for text in shown(dataset, 0)]
    assert ends == ["T"] * (8 if swap else 4)  # the first token of "Tie", and no A or B


def test_what_is_too_long_has_lost_its_label_and_is_left_out(path, caplog):
    dataset, _ = judge_data(path, max_length=10)
    with pytest.raises(DataValidationError, match="max_length=10"):
        dataset.get_batch(0)
    assert "left out" in caplog.text
