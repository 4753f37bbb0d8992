"""The tasks as environments: what the tiny model is asked must be, token by token, what it was taught with."""

import asyncio
import pickle
import random
from typing import Any

import pytest

from scripts.tiny_chat.chatml import prompt_text
from tests.tinker_cookbook.rl.tiny import END, MODEL, chatml, text_of, tokens_of
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.rl.task_env import TaskEnv, TaskGroupBuilder, TaskRLDatasetBuilder, text_as_written
from tinker_cookbook.rl.types import InitialObservationOverflow
from tinker_cookbook.tasks import TASKS, Problem, get_task
from tinker_cookbook.tasks.arithmetic import Sum
from tinker_cookbook.tasks.guess_number import Hidden
from tinker_cookbook.tasks.tools import Calculated
from tinker_cookbook.tokenizer_utils import get_tokenizer

SUM = Sum(3, "+", 4)
THOUGHTFUL = Sum(3, "+", 4, think=True)
NUMBER = Hidden(7, 10, "Guess my number. It is between 1 and {top}.")
WITH_TOOL = Calculated(300, "+", 100, "What is 300 + 100?")
CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "300+100"}}</tool_call>'
BROKEN = CALL.replace("}}<", "}<")


def play(problem: Problem, *replies: str, **options):
    async def steps():
        env = TaskEnv(chatml(), problem, **options)
        await env.initial_observation()
        return [await env.step(tokens_of(reply), extra={"stop_reason": "stop"}) for reply in replies]

    return asyncio.run(steps())


# --- faithful ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TASKS)
def test_every_turn_is_asked_as_in_the_text_the_model_was_made_from(name):
    async def follow(problem: Problem, rng: random.Random) -> None:
        env = TaskEnv(chatml(), problem)
        first = await env.initial_observation()
        assert isinstance(first, tuple)
        observation, messages, replies = first[0], list(problem.prompt), []
        while True:
            assert observation.to_ints() == tokens_of(prompt_text(messages, problem.tools))
            write = problem.right_reply if rng.random() < 0.7 else problem.wrong_reply
            replies.append(write(replies, rng))
            result = await env.step(tokens_of(replies[-1] + END))
            if result.episode_done:
                assert result.metrics["correct"] == result.reward == problem.check(replies)
                assert result.metrics["format"] == problem.well_formed(replies)
                return
            heard = problem.respond(replies)
            assert heard is not None
            messages += [{"role": "assistant", "content": replies[-1]}, heard]
            observation = result.next_observation

    async def follow_all() -> None:
        for index in range(8):
            await follow(get_task(name).problem("train", index), random.Random(index))

    asyncio.run(follow_all())


def test_the_next_prompt_goes_on_from_the_tokens_that_were_sampled():
    """Not from others that spell the same text, so that a trajectory is one sequence."""
    letters = [token for letter in "Guess: 5" for token in tokens_of(letter)]
    assert letters != tokens_of("Guess: 5")

    async def step():
        env = TaskEnv(chatml(), NUMBER)
        first = await env.initial_observation()
        assert isinstance(first, tuple)
        action = [*letters, *tokens_of(END)]
        return first[0].to_ints() + action, (await env.step(action)).next_observation.to_ints()

    played, following = asyncio.run(step())
    assert following[: len(played)] == played
    assert (
        text_of(following[len(played) :]) == "\n<|im_start|>user\nHigher.<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_call_that_cannot_be_read_stays_in_the_conversation():
    (result,) = play(WITH_TOOL, BROKEN + END)
    assert not result.episode_done
    assert f"{BROKEN}{END}\n<|im_start|>tool\nerror" in text_of(result.next_observation.to_ints())


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (f"7{END}", "7"),
        (f"<think>3+4=7</think>7{END}", "<think>3+4=7</think>7"),
        (f"3+4=7</think>7{END}", "<think>3+4=7</think>7"),  # the prompt had opened the block
        (BROKEN + END, BROKEN),
        ("7", "7"),
    ],
)
def test_the_checker_sees_what_was_written(written, text):
    assert text_as_written(chatml(), tokens_of(written)) == text


def test_renderers_that_stop_at_text_are_read_up_to_there():
    renderer = get_renderer("role_colon", get_tokenizer(MODEL), model_name=MODEL)
    assert text_as_written(renderer, tokens_of(" 7\n\nUser:")) == " 7"
    assert text_as_written(renderer, tokens_of(f" 7{END}")) == " 7"


# --- rewards ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "replies", "reward", "metrics"),
    [
        (SUM, ["7"], 1.0, {"correct": 1.0, "format": 1.0}),
        (SUM, ["8"], 0.0, {"correct": 0.0, "format": 1.0}),
        (THOUGHTFUL, ["<think>3+4=7</think>7"], 1.0, {"correct": 1.0, "format": 1.0}),
        (THOUGHTFUL, ["7"], 0.5, {"correct": 1.0, "format": 0.0}),
        (NUMBER, ["Guess: 5", "Guess: 9", "Guess: 7"], 1.0, {"correct": 1.0, "format": 1.0}),
        (NUMBER, ["Guess: 5", "7"], -0.5, {"correct": 0.0, "format": 0.0}),
        (WITH_TOOL, [CALL, "The answer is 400."], 1.0, {"correct": 1.0, "format": 1.0}),
        (WITH_TOOL, ["The answer is 400."], -0.5, {"correct": 0.0, "format": 0.0}),
    ],
)
def test_the_last_turn_is_rewarded_by_the_check(problem, replies, reward, metrics):
    *before, last = play(problem, *(reply + END for reply in replies), format_coef=0.5)
    assert [result.reward for result in before] == [0.0] * (len(replies) - 1)
    assert not any(result.episode_done for result in before)
    assert (last.reward, last.metrics, last.episode_done) == (reward, metrics, True)


def test_a_reply_without_an_end_is_neither_right_nor_well_formed():
    (result,) = play(SUM, "7", format_coef=0.5)
    assert result.reward == -0.5
    assert {"correct": 0.0, "format": 0.0, "stop/parse_error": 1.0}.items() <= result.metrics.items()


def test_a_conversation_without_room_counts_as_failed():
    room = len(tokens_of(prompt_text(NUMBER.prompt))) + 20
    (result,) = play(NUMBER, f"Guess: 5{END}", max_trajectory_tokens=room, max_generation_tokens=20)
    assert (result.reward, result.metrics["correct"], result.episode_done) == (0.0, 0.0, True)
    first = asyncio.run(TaskEnv(chatml(), NUMBER, max_trajectory_tokens=5).initial_observation())
    assert isinstance(first, InitialObservationOverflow)
    assert first.metrics["correct"] == 0.0


# --- data sets --------------------------------------------------------------------------------------------


def built(**options):
    settings: dict[str, Any] = {
        "task": "arithmetic",
        "model_name_for_tokenizer": MODEL,
        "renderer_name": "chatml",
    } | options
    return asyncio.run(TaskRLDatasetBuilder(**settings)())


def problems(dataset, index: int) -> list[Problem]:
    return [group.problem for group in dataset.get_batch(index)]


def test_problems_are_numbered_through_the_batches():
    train, test = built(batch_size=3, group_size=5, n_batches=4, test_size=7, seed=2)
    task = get_task("arithmetic")
    assert len(train) == 4
    assert problems(train, 2) == [task.problem("train", i, seed=2) for i in (6, 7, 8)]
    assert test is not None
    assert (len(test), problems(test, 0)) == (1, list(task.problems("test", 7, seed=2)))
    (group, *_), (once, *_) = train.get_batch(0), test.get_batch(0)
    assert group.logging_tags() == ["arithmetic"]
    assert len(asyncio.run(group.make_envs())) == 5
    assert len(asyncio.run(once.make_envs())) == 1
    with pytest.raises(IndexError):
        train.get_batch(4)


def test_options_go_to_the_task():
    train, test = built(task_options={"think": 1.0, "largest": 9}, batch_size=20, test_size=0)
    assert test is None
    assert all(isinstance(each, Sum) and each.think and each.a < 10 for each in problems(train, 0))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"task": "sums"}, "tasks are: arithmetic"),
        ({"task_options": {"thinking": 1}}, "it has: think, one_digit, largest"),
        (
            {"task": "sort", "task_options": {"kinds": "letters+dogs"}},
            "'letters\\+dogs' is not some of words",
        ),
        ({"batch_size": 0}, "batch_size=0"),
        ({"test_size": -1}, "test_size=-1"),
        ({"task": "tools", "renderer_name": "role_colon"}, "<tool_call>"),
    ],
)
def test_what_cannot_be_built_is_said(options, words):
    with pytest.raises(ConfigurationError, match=words):
        built(**options)


@pytest.mark.parametrize("name", TASKS)
def test_groups_survive_pickle(name):
    problem = get_task(name).problem("train", 0)
    group = pickle.loads(pickle.dumps(TaskGroupBuilder(name, problem, chatml(), 2)))
    assert group.problem == problem
