"""Problems of mathematics as environments: data, prompts, rewards."""

import asyncio
import json
import pickle
from typing import Any

import pytest

from tinker_cookbook.exceptions import ConfigurationError, DataError
from tinker_cookbook.recipes.math_rl import problems
from tinker_cookbook.recipes.math_rl.arithmetic_env import ArithmeticDatasetBuilder, is_for_testing
from tinker_cookbook.recipes.math_rl.math_env import (
    Gsm8kDatasetBuilder,
    MathDatasetBuilder,
    MathEnv,
    MathProblemsBuilder,
    get_math_dataset_builder,
)
from tinker_cookbook.recipes.math_rl.problems import MathProblem, read_problem
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.tokenizer_utils import get_tokenizer

TINY = "tinker-engine/tiny-chat"
COMMON: dict[str, Any] = {
    "model_name_for_tokenizer": TINY,
    "renderer_name": "chatml",
    "group_size": 3,
    "batch_size": 2,
}


@pytest.fixture(scope="module")
def renderer():
    return get_renderer("chatml", get_tokenizer(TINY), model_name=TINY)


def step(env, text: str, *, ended: bool = True):
    renderer = env.renderer
    tokens = renderer.tokenizer.encode(text, add_special_tokens=False)
    return asyncio.run(env.step(tokens + renderer.get_stop_sequences()[:1] if ended else tokens))


def prompt_of(env) -> str:
    ob, _ = asyncio.run(env.initial_observation())
    return env.renderer.tokenizer.decode(ob.to_ints())


@pytest.mark.parametrize(
    ("reply", "ended", "reward", "correct", "form"),
    [
        (r"It is \boxed{\frac{1}{2}}.", True, 1.0, 1.0, 1.0),
        (r"It is \boxed{0.5}.", False, 0.9, 1.0, 0.0),
        (r"It is \boxed{2}.", True, 0.0, 0.0, 1.0),
        ("It is 0.5.", True, -0.1, 0.0, 0.0),
        (r"\boxed{9**9**9**9}", True, 0.0, 0.0, 1.0),
    ],
)
def test_the_reward_is_for_the_answer_less_the_form(renderer, reply, ended, reward, correct, form):
    result = step(MathEnv("Half of one?", "1/2", renderer), reply, ended=ended)
    assert result.reward == pytest.approx(reward)
    assert result.metrics == {"correct": correct, "format": form}
    assert result.episode_done


def test_rows_of_the_data_sets():
    assert read_problem({"question": "q", "answer": "a #### b\n#### 1,200"}) == ("q", "1200")
    assert read_problem({"problem": "q", "solution": r"so \boxed{x^2}", "level": 5}) == ("q", "x^2")
    assert read_problem({"question": "q", "final_answer": "7", "r1_solution_1": "..."}) == ("q", "7")
    assert read_problem({"problem": "q", "answer": 7}) == ("q", "7")
    for row in ({"answer": "1"}, {"question": "q"}, {"question": "q", "solution": "no box"}):
        with pytest.raises(DataError):
            read_problem(row)


@pytest.fixture
def files(tmp_path):
    train = [{"question": f"What is {i} + 1?", "answer": f"#### {i + 1}"} for i in range(7)]
    test = [
        {"question": "What is 3 + 1?", "answer": "#### 4"},
        {"question": "What is 90 + 1?", "answer": "91"},
    ]
    for name, rows in (("train", [*train, {"question": "no answer"}]), ("test", test)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def questions(dataset) -> list[str]:
    return [builder.env_thunk().problem for i in range(len(dataset)) for builder in dataset.get_batch(i)]


def test_files_of_ones_own_and_what_is_tested_is_not_trained_on(files, caplog):
    builder = Gsm8kDatasetBuilder(
        train_data=str(files / "train.jsonl"), test_data=str(files / "test.jsonl"), **COMMON
    )
    train, test = asyncio.run(builder())
    assert test is not None
    assert "left out 1 of 8 rows" in caplog.text
    assert sorted(questions(train)) == [f"What is {i} + 1?" for i in (0, 1, 2, 4, 5, 6)]
    assert questions(test) == ["What is 3 + 1?", "What is 90 + 1?"]
    assert (len(train), len(test)) == (3, 1)
    groups = [asyncio.run(builder.make_envs()) for builder in (train.get_batch(0)[0], test.get_batch(0)[0])]
    assert [len(envs) for envs in groups] == [3, 1]
    assert "without units" in prompt_of(groups[0][0])  # the question of GSM8K has words of its own
    assert "strawberry" in prompt_of(groups[0][0])
    pickle.loads(pickle.dumps(train.get_batch(0)))


def test_the_order_is_of_the_seed(files):
    def order(seed: int) -> list[str]:
        builder = MathProblemsBuilder(train_data=str(files / "train.jsonl"), seed=seed, **COMMON)
        return questions(asyncio.run(builder())[0])

    assert order(0) == order(0) != order(1)


def test_holding_out_of_one_file(files):
    builder = MathProblemsBuilder(train_data=str(files / "train.jsonl"), test_size=2, **COMMON)
    train, test = builder.train_and_test()
    assert (len(train), len(test)) == (5, 2)
    assert not set(train) & set(test)
    with pytest.raises(DataError, match="leaves nothing to train on"):
        MathProblemsBuilder(train_data=str(files / "train.jsonl"), test_size=7, **COMMON).train_and_test()
    with pytest.raises(ConfigurationError, match="train_data=my_problems"):
        MathProblemsBuilder(**COMMON).train_and_test()


def test_math_without_math_500(monkeypatch):
    """The data of the hub is asked for by name; MATH-500 is taken out of the rest."""
    asked = []

    class Rows(list):
        name = "rows"

        def parts(self):
            return [self]

        def where(self, index):
            return str(index)

    def open_rows(path, *, subset, split):
        asked.append((path, subset, split))
        if path == "HuggingFaceH4/MATH-500":
            return Rows([{"problem": "algebra train", "answer": "1"}])
        return Rows([{"problem": f"{subset} {split}", "solution": r"\boxed{1}"}])

    monkeypatch.setattr(problems, "open_rows", open_rows)
    train, test = MathDatasetBuilder(**COMMON).train_and_test()
    assert len(asked) == 15
    assert test == [MathProblem("algebra train", "1")]
    assert len(train) == 13


def test_builders_by_name():
    common = {**COMMON, "seed": 3}
    assert type(get_math_dataset_builder("math", **common)) is MathDatasetBuilder
    with pytest.raises(ConfigurationError, match="gsm8k, math, polaris, deepmath, problems"):
        get_math_dataset_builder("maths", **common)


# --- sums -------------------------------------------------------------------------------------------------


def sums(dataset: Any) -> list[tuple[int, int]]:
    envs = [group.env_thunk() for i in range(len(dataset)) for group in dataset.get_batch(i)]
    return [(env.x, env.y) for env in envs]


def test_sums_are_the_same_for_a_seed_and_none_is_in_both_splits():
    train, test = asyncio.run(ArithmeticDatasetBuilder(n_batches=40, seed=1, **COMMON)())
    again, _ = asyncio.run(ArithmeticDatasetBuilder(n_batches=40, seed=1, **COMMON)())
    other, _ = asyncio.run(ArithmeticDatasetBuilder(n_batches=40, seed=2, **COMMON)())
    assert sums(train) == sums(again) != sums(other)
    assert len(set(sums(train))) > 70
    assert not any(is_for_testing(x, y) for x, y in sums(train))
    assert len(sums(test)) == 100
    assert all(is_for_testing(x, y) and is_for_testing(y, x) for x, y in sums(test))


def test_the_last_number_of_the_reply_is_the_answer():
    dataset, _ = asyncio.run(ArithmeticDatasetBuilder(n_batches=1, **COMMON)())
    env: Any = asyncio.run(dataset.get_batch(0)[0].make_envs())[0]
    env.x, env.y = 600, 634
    assert prompt_of(env).index("What is 4 + 5?") < prompt_of(env).index("What is 600 + 634?")
    for reply, reward in (("1234", 1.0), ("600 + 634 = 1,234", 1.0), ("1235", 0.0), ("many", -0.1)):
        assert step(env, reply).reward == pytest.approx(reward), reply


def test_products():
    builder = ArithmeticDatasetBuilder(n_batches=1, operation="*", largest=9, **COMMON)
    dataset, _ = asyncio.run(builder())
    env: Any = asyncio.run(dataset.get_batch(0)[0].make_envs())[0]
    env.x, env.y = 7, 8
    assert "What is 4 * 5?" in prompt_of(env)
    assert "What is 7 * 8?" in prompt_of(env)
    assert step(env, "56").reward == 1.0
    assert step(env, "15").reward == 0.0


@pytest.mark.parametrize(("restate", "shown"), [(False, "\n20<"), (True, "\n4 * 5 = 20<")])
def test_the_example_is_shown_as_its_answer_alone_or_restated(restate: bool, shown: str):
    builder = ArithmeticDatasetBuilder(n_batches=1, operation="*", restate=restate, **COMMON)
    dataset, _ = asyncio.run(builder())
    env: Any = asyncio.run(dataset.get_batch(0)[0].make_envs())[0]
    assert shown in prompt_of(env)


def test_a_wrong_sum_is_worth_something_by_its_digits_if_that_is_asked_for():
    dataset, _ = asyncio.run(ArithmeticDatasetBuilder(n_batches=1, partial_credit=0.5, **COMMON)())
    env: Any = asyncio.run(dataset.get_batch(0)[0].make_envs())[0]
    env.x, env.y = 47, 65
    wanted = {
        "112": (1.0, 1.0),
        "122": (1 / 3, 0.0),
        "12": (1 / 3, 0.0),
        "1112": (0.375, 0.0),
        "many": (-0.1, 0.0),
    }
    for reply, (reward, correct) in wanted.items():
        result = step(env, reply)
        assert result.reward == pytest.approx(reward), reply
        assert result.metrics["correct"] == correct
    with pytest.raises(ConfigurationError, match="partial_credit"):
        ArithmeticDatasetBuilder(n_batches=1, partial_credit=1.0, **COMMON)


def test_the_answer_can_be_begun_for_the_model():
    builder = ArithmeticDatasetBuilder(n_batches=1, restate=True, begin_answer=True, **COMMON)
    dataset, _ = asyncio.run(builder())
    env: Any = asyncio.run(dataset.get_batch(0)[0].make_envs())[0]
    assert prompt_of(env).endswith(f"\n{env.x} + {env.y} =")
    assert step(env, f" {env.x + env.y}").reward == 1.0


def test_an_answer_can_be_asked_to_be_an_equation():
    dataset, _ = asyncio.run(ArithmeticDatasetBuilder(n_batches=1, equation=True, operation="*", **COMMON)())
    env: Any = asyncio.run(dataset.get_batch(0)[0].make_envs())[0]
    env.x, env.y = 6, 7
    wanted = {
        "6 * 7 = 42": (1.0, 1.0),
        " 6*7 = 42.": (1.0, 1.0),
        "6 * 7 = 41": (0.0, 1.0),
        "42": (0.9, 0.0),
        "6 * 7 is 42": (0.9, 0.0),
        "7 * 6 = 42": (0.9, 0.0),
        "6 * 7 = 42, as 6 * 7 = 42": (0.9, 0.0),
        "many": (-0.1, 0.0),
    }
    for reply, (reward, form) in wanted.items():
        result = step(env, reply)
        assert result.reward == pytest.approx(reward), reply
        assert result.metrics["format"] == form, reply
    with pytest.raises(ConfigurationError, match="begin_answer"):
        ArithmeticDatasetBuilder(n_batches=1, equation=True, begin_answer=True, **COMMON)


def test_numbers_have_a_smallest_and_a_largest():
    train, test = asyncio.run(ArithmeticDatasetBuilder(n_batches=30, smallest=10, largest=99, **COMMON)())
    numbers = {number for pair in [*sums(train), *sums(test)] for number in pair}
    assert (min(numbers), max(numbers)) == (10, 99)
    for wrong in ({"smallest": 5, "largest": 13}, {"smallest": -1, "largest": 13}):
        with pytest.raises(ConfigurationError, match="smallest"):
            ArithmeticDatasetBuilder(n_batches=1, **wrong, **COMMON)
