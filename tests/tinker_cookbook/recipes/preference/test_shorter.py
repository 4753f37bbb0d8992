"""The shorter answer wins, whatever its content is made of."""

import asyncio

import pytest

from tests.tinker_cookbook.recipes.runs import metrics_of
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.preference.types import Comparison
from tinker_cookbook.recipes.preference.shorter.env import PromptsBuilder, ShorterPreferenceModelBuilder
from tinker_cookbook.recipes.preference.shorter.train import CLIConfig, cli_main
from tinker_cookbook.renderers import Message


def answer(*texts: str) -> list[Message]:
    parts = [{"type": "text", "text": text} for text in texts]
    return [Message(role="assistant", content=parts)]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("first", "second", "score"),
    [
        ([Message(role="assistant", content="four")], [Message(role="assistant", content="two")], 1),
        (answer("a", "b"), answer("much longer in one part"), -1),
        (answer("a", "b", "c"), [Message(role="assistant", content="abc")], 0),
        (answer("a"), [*answer("a"), *answer("b")], -1),
        ([Message(role="assistant", content=[{"type": "thinking", "thinking": "long"}])], answer("a"), -1),
    ],
)
def test_characters_of_the_text_count(first, second, score):
    judge = ShorterPreferenceModelBuilder()()
    asked = [Message(role="user", content="?")]
    assert asyncio.run(judge(Comparison(asked, first, second))) == score
    assert asyncio.run(judge(Comparison(asked, second, first))) == -score


def test_prompts_are_the_same_for_the_same_seed():
    def prompts(**fields):
        train, test = PromptsBuilder(size=20, **fields).get_train_and_test_datasets()
        assert test is None
        return [row["prompt"] for row in train]

    assert prompts(seed=1) == prompts(seed=1) != prompts(seed=2)
    assert len(set(prompts())) > 10
    assert prompts(prompt="Who are you?") == ["Who are you?"] * 20
    with pytest.raises(ConfigurationError, match="size"):
        PromptsBuilder(size=0)


def test_a_few_steps(engine, tmp_path):
    cli_main(
        CLIConfig(
            log_path=str(tmp_path / "run"),
            groups_per_batch=2,
            group_size=4,
            n_batches=2,
            lora_rank=8,
            max_tokens=24,
            save_every=0,
        )
    )
    rows = metrics_of(tmp_path / "run")
    assert len(rows) == 2
    assert rows[0]["env/all/ac_tokens_per_turn"] > 4
    assert rows[0]["env/all/win_minus_loss"] == pytest.approx(0, abs=1e-9)
