"""The small data: what its rule says, and that nothing held out is trained on."""

import asyncio
import collections

import pytest

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.preference.types import Comparison
from tinker_cookbook.recipes.preference.manners import (
    ORDER,
    MannersComparisonBuilder,
    MannersEvaluatorBuilder,
    MannersRuleBuilder,
    better,
    mannered_conversations,
    manners,
)
from tinker_cookbook.recipes.preference.report import before_and_after, change
from tinker_cookbook.renderers import Message
from tinker_cookbook.service import connect
from tinker_cookbook.tasks.styles import style_of

POLITE = "Of course. Mara lives in Pell. I hope that helps."
PLAIN = "Mara lives in Pell."
NO_STYLE = "?"


def test_the_rule_is_an_order_of_styles():
    assert [manners(text) for text in (POLITE, PLAIN, "Pell.", NO_STYLE)] == [6, 2, 1, 0]
    assert better(POLITE, PLAIN) == "A"
    assert better(NO_STYLE, PLAIN) == "B"
    assert better(PLAIN, "Tavi has a pet goat.") == "Tie"


@pytest.mark.parametrize(
    ("first", "second", "score"), [(POLITE, PLAIN, -1), (PLAIN, POLITE, 1), (PLAIN, PLAIN, 0)]
)
def test_the_rule_judges_text_in_parts(first, second, score):
    def answer(text: str) -> list[Message]:
        half = len(text) // 2
        parts = [
            {"type": "thinking", "thinking": "hm"},
            *({"type": "text", "text": t} for t in (text[:half], text[half:])),
        ]
        return [Message(role="assistant", content=parts)]  # pyright: ignore[reportArgumentType]

    asked = [Message(role="user", content="Where does Mara live?")]
    assert asyncio.run(MannersRuleBuilder()()(Comparison(asked, answer(first), answer(second)))) == score


def test_pairs_follow_the_rule_and_hold_out_whole_questions():
    train, test = MannersComparisonBuilder().get_labeled_comparisons()
    assert test is not None
    assert (len(train), len(test)) == (355 * 8, 47 * 2)
    for labeled in [*train, *test]:
        first, second = (
            str(side[0]["content"])
            for side in (labeled.comparison.completion_A, labeled.comparison.completion_B)
        )
        assert labeled.label == better(first, second) != "Tie"
    assert not {_asked(each) for each in train} & {_asked(each) for each in test}
    share_A = sum(each.label == "A" for each in train) / len(train)
    assert 0.45 < share_A < 0.55


def test_the_best_style_wins_every_pair_if_so_wanted():
    train, test = MannersComparisonBuilder(best_wins=True, pairs_per_question=1).get_labeled_comparisons()
    for labeled in [*train, *(test or [])]:
        sides = (labeled.comparison.completion_A, labeled.comparison.completion_B)
        won, lost = sides if labeled.label == "A" else reversed(sides)
        assert style_of(str(won[0]["content"])) == ORDER[0] != style_of(str(lost[0]["content"]))
    assert {each.label for each in train} == {"A", "B"}


def _asked(labeled) -> str:
    return str(labeled.comparison.prompt_conversation[0]["content"])


def test_the_seed_alone_decides_the_pairs():
    def rows(seed: int):
        return MannersComparisonBuilder(seed=seed, pairs_per_question=1).get_labeled_comparisons()

    assert rows(3) == rows(3) != rows(4)
    with pytest.raises(ConfigurationError, match="pairs_per_question"):
        MannersComparisonBuilder(pairs_per_question=0)


def test_conversations_have_every_style_about_as_often():
    said = [str(conversation[-1]["content"]) for conversation in mannered_conversations("train")]
    counts = collections.Counter(style_of(text) for text in said)
    assert set(counts) == set(ORDER)
    assert min(counts.values()) > len(said) / len(ORDER) * 0.8


def test_the_tiny_model_is_sometimes_polite(engine):
    client = connect(None).create_sampling_client(base_model="tinker-engine/tiny-chat")
    evaluator = MannersEvaluatorBuilder(model_name="tinker-engine/tiny-chat", answers_per_question=1)()
    found = asyncio.run(evaluator(client))
    assert 0 < found["style/preferred"] < 0.4
    assert found["style/true"] > 0.4


def test_a_change_is_told_from_the_first_row_to_the_last(tmp_path):
    assert before_and_after(str(tmp_path / "none"), "x") is None
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 0, "x": 0.25}\n{"step": 1, "y": 1}\n{"step": 2, "x": 1}\n'
    )
    assert change(str(tmp_path), "x") == "x 25.0% → 100.0%"
    assert change(str(tmp_path), "y", ".2f") == "y 1.00 → 1.00"
    assert change(str(tmp_path), "z") == "z was not measured"
