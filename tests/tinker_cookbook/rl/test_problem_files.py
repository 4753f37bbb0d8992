import asyncio
import json
import pickle
import threading
from collections import Counter
from typing import Any

import pytest

from tests.tinker_cookbook.rl.tiny import END, MODEL, text_of, tokens_of
from tinker_cookbook.exceptions import ConfigurationError, DataError
from tinker_cookbook.rl.problem_files import CHECKS, ProblemFileBuilder, ProblemListBuilder
from tinker_cookbook.rl.types import StepResult

COMMON: dict[str, Any] = {"model_name_for_tokenizer": MODEL, "renderer_name": "chatml"}
PAIRS = [(f"What is {i} + 1?", str(i + 1)) for i in range(10)]


@pytest.mark.parametrize(
    ("check", "reply", "answer", "is_right"),
    [
        ("exact", " Paris\n", "Paris", True),
        ("exact", "Paris.", "Paris", False),
        ("number", "It is 1,234.", "1234", True),
        ("number", "5 + 5 = 10.0", "so 5 + 5 = 10\n#### 10", True),
        ("number", "7-3", "3", True),
        ("number", "-3", "3", False),
        ("number", "none", "3", False),
        ("contains", "It is PARIS, of course", "Paris", True),
        ("contains", "It is Rome", "Paris", False),
        ("regex", "It is Paris", r"\bParis\b|\bparis\b", True),
        ("regex", "Comparison", r"\bParis\b", False),
    ],
)
def test_checks(check, reply, answer, is_right):
    assert CHECKS[check](reply, answer) is is_right


def built(**options):
    settings: dict[str, Any] = {"pairs": PAIRS, **COMMON, **options}
    return asyncio.run(ProblemListBuilder(**settings)())


def questions(dataset, index: int) -> list[str]:
    return [group.env_thunk().question for group in dataset.get_batch(index)]


def test_each_epoch_has_every_question_once_and_batches_depend_on_their_index():
    train, test = built(batch_size=4, n_epochs=2)
    assert test is None
    assert len(train) == 6
    batches = [questions(train, i) for i in range(6)]
    assert [len(batch) for batch in batches] == [4, 4, 2, 4, 4, 2]
    assert Counter(question for batch in batches for question in batch) == {
        question: 2 for question, _ in PAIRS
    }
    assert batches[:3] != batches[3:]
    again, _ = built(batch_size=4, n_epochs=2)
    assert [questions(again, i) for i in (5, 0)] == [batches[5], batches[0]]


def test_what_is_held_out_is_not_trained_on():
    train, test = built(test_size=3, group_size=4)
    assert test is not None
    assert (len(test), len(test.get_batch(0))) == (1, 3)
    assert set(questions(train, 0)) | set(questions(test, 0)) == {question for question, _ in PAIRS}
    assert not set(questions(train, 0)) & set(questions(test, 0))
    assert len(asyncio.run(train.get_batch(0)[0].make_envs())) == 4
    assert len(asyncio.run(test.get_batch(0)[0].make_envs())) == 1


def test_an_answer_is_rewarded_and_groups_survive_pickle():
    train, _ = built(
        pairs=[("What is 2 + 2?", "4")], check="number", system_prompt="Be brief.", format_coef=0.5
    )
    group = pickle.loads(pickle.dumps(train.get_batch(0)[0]))
    env, *_ = asyncio.run(group.make_envs())
    prompt, _ = asyncio.run(env.initial_observation())
    assert text_of(prompt.to_ints()).startswith(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat"
    )
    rewards = [asyncio.run(env.step(tokens_of(text))).reward for text in (f"It is 4{END}", f"5{END}", "4")]
    assert rewards == [1.0, 0.0, 0.5]


def length_score(reply: str, answer: str) -> float:
    return len(reply) / 10 if answer else 0.25


async def slow_score(reply: str, answer: str) -> bool:
    await asyncio.sleep(0)
    return answer in reply


def stuck(reply: str, answer: str) -> float:
    threading.Event().wait()
    return 0.0


def broken(reply: str, answer: str) -> float:
    raise KeyError("no such thing")


def wordy(reply: str, answer: str) -> str:
    return "good"


def score_of(function, text: str, **options) -> StepResult:
    train, _ = built(pairs=[("Say it", "it")], check=f"{__name__}:{function.__name__}", **options)
    env, *_ = asyncio.run(pickle.loads(pickle.dumps(train.get_batch(0)[0])).make_envs())
    return asyncio.run(env.step(tokens_of(f"{text}{END}")))


def test_a_function_of_ones_own_gives_the_reward():
    result = score_of(length_score, "12345")
    assert result.reward == 0.5
    assert result.metrics == {"format": 1.0, "correct": 0.0, "score": 0.5}
    assert score_of(slow_score, "this is it").reward == 1.0


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        (stuck, TimeoutError, "stuck did not return within check_seconds=0.01"),
        (broken, KeyError, "no such thing"),
        (wordy, TypeError, "returned 'good'"),
    ],
)
def test_a_function_that_gives_no_reward_fails_the_try(function, error, words):
    with pytest.raises(error, match=words):
        score_of(function, "it", check_seconds=0.01)


def test_a_function_may_do_without_an_answer(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"question": "Say something"}\n')
    check = f"{__name__}:length_score"
    train, _ = asyncio.run(ProblemFileBuilder(path=str(tmp_path / "rows.jsonl"), check=check, **COMMON)())
    env, *_ = asyncio.run(train.get_batch(0)[0].make_envs())
    assert asyncio.run(env.step(tokens_of(f"hm{END}"))).reward == 0.25


@pytest.mark.parametrize(
    "check", ["vibes", "no_such_module:f", f"{__name__}:no_such_function", f"{__name__}:PAIRS"]
)
def test_a_check_that_is_none_is_said(check):
    with pytest.raises(ConfigurationError, match="check="):
        built(check=check)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv"])
def test_files_are_read_by_the_names_of_their_columns(name, tmp_path):
    path = tmp_path / name
    if name.endswith("csv"):
        path.write_text("ask,say\n" + "".join(f"{question},{answer}\n" for question, answer in PAIRS))
    else:
        rows = [{"ask": question, "say": int(answer)} for question, answer in PAIRS]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    builder = ProblemFileBuilder(
        path=str(path), question_field="ask", answer_field="say", check="number", test_size=2, **COMMON
    )
    train, test = asyncio.run(builder())
    assert len(questions(train, 0)) == 8
    assert test is not None
    assert test.get_batch(0)[0].env_thunk().answer.isdigit()  # pyright: ignore[reportAttributeAccessIssue]


def test_a_file_of_its_own_can_be_held_out(tmp_path):
    for name, pairs in (("train", PAIRS[:6]), ("test", PAIRS[6:])):
        rows = [{"question": question, "answer": answer} for question, answer in pairs]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    paths = {"path": str(tmp_path / "train.jsonl"), "test_path": str(tmp_path / "test.jsonl")}
    train, test = asyncio.run(ProblemFileBuilder(**paths, **COMMON)())
    assert (len(questions(train, 0)), len(questions(test, 0))) == (6, 4)
    with pytest.raises(ConfigurationError, match="one way"):
        ProblemFileBuilder(**paths, test_size=1, **COMMON)


@pytest.mark.parametrize(
    ("line", "options", "words"),
    [
        ('{"question": "a"}', {}, r"line 2 has no 'answer'; it has: question"),
        ('{"question": ', {}, "line 2.*JSON"),
        ('{"question": "a", "answer": "b"}', {"check": "number"}, "has no number"),
        ('{"question": "a", "answer": "("}', {"check": "regex"}, "check=regex"),
        ('{"question": "a", "answer": "1"}', {"test_size": 2}, "leaves no question"),
    ],
)
def test_a_file_that_cannot_be_used_is_said(line, options, words, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "q", "answer": "1"}\n' + line)
    with pytest.raises(DataError, match=words):
        asyncio.run(ProblemFileBuilder(path=str(path), **options, **COMMON)())


@pytest.mark.parametrize("options", [{"check": "vibes"}, {"batch_size": 0}, {"test_size": -1}])
def test_settings_that_cannot_work_are_said(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        built(**options)


def test_an_empty_list_is_said():
    with pytest.raises(DataError, match="empty"):
        built(pairs=[])
