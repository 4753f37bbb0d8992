"""Tasks of reasoning-gym as environments."""

import asyncio
import pickle
import sys
from typing import Any

import pytest

from tests.tinker_cookbook.recipes.runs import metrics_of
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.reasoning_gym import env as gym_env
from tinker_cookbook.recipes.reasoning_gym.env import ReasoningGymDatasetBuilder, ReasoningGymEnv, parse_tasks
from tinker_cookbook.recipes.reasoning_gym.extraction import EXTRACTIONS, INSTRUCTIONS, extract_answer
from tinker_cookbook.recipes.reasoning_gym.train import CLIConfig, build_config, cli_main
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.tokenizer_utils import get_tokenizer

TINY = "tinker-engine/tiny-chat"
SMALL: dict[str, Any] = {
    "model_name_for_tokenizer": TINY,
    "renderer_name": "chatml",
    "batch_size": 4,
    "n_batches": 5,
}
ONE_DIGIT = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


@pytest.fixture
def gym():
    return pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")


@pytest.fixture(scope="module")
def renderer():
    return get_renderer("chatml", get_tokenizer(TINY), model_name=TINY)


@pytest.mark.parametrize(
    ("extraction", "reply", "answer"),
    [
        ("last_line", "I think\n\nYes.\n", "Yes"),
        ("last_line", "**Answer:** 4", "4"),
        ("last_line", "The answer is 12.", "12"),
        ("last_line", " \n", None),
        ("last_number", "4 - 8 = -4.", "-4"),
        ("last_number", "about 1,234", "1234"),
        ("last_number", "none", None),
        ("tag", "<answer>1</answer> no <answer> 2\n</answer>", "2"),
        ("tag", "<answer>1", None),
        ("boxed", r"so \boxed{7}", "7"),
        ("boxed", "7", None),
        ("whole", " a\nb ", "a\nb"),
        ("whole", "", None),
    ],
)
def test_where_the_answer_is(extraction, reply, answer):
    assert extract_answer(reply, extraction) == answer


def test_each_form_is_asked_for_in_few_words():
    assert set(INSTRUCTIONS) == set(EXTRACTIONS)
    assert max(map(len, INSTRUCTIONS.values())) < 40


def test_tasks_with_weights():
    assert parse_tasks("chain_sum") == {"chain_sum": 1.0}
    assert parse_tasks("chain_sum:2, products") == {"chain_sum": 2.0, "products": 1.0}
    for wrong in ("", "a:b", "a:-1", "a:0", "a,,b", "a:nan", "a:inf"):
        with pytest.raises(ConfigurationError):
            parse_tasks(wrong)


def test_options_of_several_tasks_are_by_task():
    with pytest.raises(ConfigurationError, match="max_terms"):
        ReasoningGymDatasetBuilder(task="chain_sum,products", config={"max_terms": 2}, **SMALL)
    with pytest.raises(ConfigurationError, match="JSON"):
        build_config(CLIConfig(config="max_terms=2"))


def test_without_the_package_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ConfigurationError, match="pip install reasoning-gym"):
        asyncio.run(ReasoningGymDatasetBuilder(**SMALL)())


def test_a_score_that_cannot_be_had_is_0(renderer, monkeypatch, caplog):
    """Whatever the package does with an answer: raise, hang, or give no number."""
    entry = {"question": "?", "answer": "1", "metadata": {}}
    env = ReasoningGymEnv("a_task", "{}", entry, renderer, timeout=0.05)
    for target, arguments in (("time:sleep", (3600,)), ("operator:truediv", (1, 0))):
        monkeypatch.setattr(gym_env, "SCORE", target)
        monkeypatch.setattr(env, "_arguments", lambda answer, given=arguments: given)
        assert asyncio.run(env.score("1")) == 0.0
    assert caplog.text.count("scored 0") == 2


# --- with the package -------------------------------------------------------------------------------------


def entries(dataset) -> list[dict]:
    return [builder.env_thunk().entry for i in range(len(dataset)) for builder in dataset.get_batch(i)]


def test_what_is_tested_is_not_trained_on(gym):
    builder = ReasoningGymDatasetBuilder(config=ONE_DIGIT, test_size=60, **SMALL)
    train, test = asyncio.run(builder())
    assert test is not None
    tested = [entry["question"] for entry in entries(test)]
    assert len(set(tested)) == len(tested) == 60
    assert not {entry["question"] for entry in entries(train)} & set(tested)
    again, _ = asyncio.run(builder())
    assert entries(train) == entries(again)
    other, _ = asyncio.run(ReasoningGymDatasetBuilder(config=ONE_DIGIT, test_size=0, seed=1, **SMALL)())
    assert entries(train) != entries(other)
    pickle.loads(pickle.dumps(train.get_batch(0)))


def test_a_task_with_too_few_problems(gym):
    config = {**ONE_DIGIT, "min_digits": 1}
    builder = ReasoningGymDatasetBuilder(config=config, test_size=2000, **SMALL)
    with pytest.raises(ConfigurationError, match="lower test_size"):
        entries(asyncio.run(builder())[0])


def test_mixed_by_weight(gym):
    many = {**SMALL, "batch_size": 20}
    train, test = asyncio.run(
        ReasoningGymDatasetBuilder(
            task="chain_sum:4,syllogism:1", config={"chain_sum": ONE_DIGIT}, test_size=3, **many
        )()
    )
    assert test is not None
    tags = [builder.logging_tags()[0] for i in range(5) for builder in train.get_batch(i)]
    assert 65 < tags.count("chain_sum") < 95
    assert [builder.logging_tags() for builder in test.get_batch(0)] == [["chain_sum"]] * 3 + [
        ["syllogism"]
    ] * 3


def test_the_reward_is_the_score_of_the_package(gym, renderer):
    data = gym.create_dataset("chain_sum", size=1, seed=5, **ONE_DIGIT)
    entry = data[0]
    env = ReasoningGymEnv("chain_sum", "{}", entry, renderer)
    for reply in (entry["answer"], f"{entry['answer']}.", "wrong", "it is " + entry["answer"] + " or so"):
        tokens = renderer.tokenizer.encode(reply, add_special_tokens=False)
        result = asyncio.run(env.step(tokens + renderer.get_stop_sequences()[:1]))
        bare = reply.removesuffix(".")
        assert result.reward == result.metrics["score"] == pytest.approx(data.score_answer(bare, entry))
        assert result.metrics["correct"] == float(bare == entry["answer"])
    assert env.check_answer(entry["answer"])
    assert env.get_question().endswith("\nGive only the answer.")


def test_mistakes_are_said(gym):
    with pytest.raises(ConfigurationError, match="chain_sum"):
        asyncio.run(ReasoningGymDatasetBuilder(task="chain_sums", **SMALL)())
    with pytest.raises(ConfigurationError, match="does not take the options"):
        asyncio.run(ReasoningGymDatasetBuilder(config={"colour": 1}, **SMALL)())


def test_a_few_steps_on_the_engine(gym, engine, tmp_path):
    cli_main(
        CLIConfig(
            log_path=str(tmp_path / "run"),
            groups_per_batch=4,
            group_size=4,
            n_batches=2,
            lora_rank=8,
            test_size=4,
            save_every=0,
        )
    )
    rows = metrics_of(tmp_path / "run")
    assert rows[-1]["step"] == 2
    assert 0 <= rows[0]["env/all/score"] <= 1
