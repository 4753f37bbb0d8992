"""What every task promises: seeded problems, splits that do not overlap, replies its own checker agrees with."""

import itertools
import random
import subprocess
import sys

import pytest

from tinker_cookbook.tasks import TASKS, Message, Problem, careless, converse, get_task, solution
from tinker_cookbook.tasks.formats import Formats
from tinker_cookbook.tasks.lists import Sort

COUNT = 300

# Games that chance decides now and then, however well they are played; and those a careless player may still win.
PLAYED_RIGHT = {"guess_number": 0.5, "ask_questions": 0.5}
PLAYED_WRONG = {"guess_number": 0.3, "ask_questions": 0.1}


def replies(turns: list[Message]) -> list[str]:
    return [turn["content"] for turn in turns if turn["role"] == "assistant"]


def problems(name: str) -> list[Problem]:
    task = get_task(name)
    return [*task.problems("train", COUNT), *task.problems("test", COUNT)]


@pytest.mark.parametrize("name", TASKS)
def test_a_problem_follows_from_its_number_and_seed(name):
    first, again = list(get_task(name).problems("train", 20)), list(get_task(name).problems("train", 20))
    assert first == again
    assert [p.prompt for p in first] != [p.prompt for p in get_task(name).problems("train", 20, seed=1)]


def test_problems_do_not_depend_on_the_process():
    program = (
        "from tinker_cookbook.tasks import TASKS, get_task\n"
        "print([get_task(name).problem('test', 3).prompt for name in TASKS])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert shown.stdout.strip() == str([get_task(name).problem("test", 3).prompt for name in TASKS])


@pytest.mark.parametrize("name", TASKS)
def test_the_splits_share_no_key(name):
    task = get_task(name)
    train, test = ({p.key for p in task.problems(split, COUNT)} for split in ("train", "test"))
    assert train
    assert test
    assert not train & test


@pytest.mark.parametrize("name", TASKS)
def test_the_checker_accepts_right_replies_and_refuses_wrong_ones(name):
    rng = random.Random(0)
    right, wrong = [], []
    for problem in problems(name):
        solved = replies(solution(problem, rng))
        assert problem.well_formed(solved), (problem, solved)
        right.append(problem.check(solved))
        wrong.append(problem.check(replies(careless(problem, rng, mistakes=1.0))))
    assert sum(right) / len(right) >= PLAYED_RIGHT.get(name, 1.0)
    assert sum(wrong) / len(wrong) <= PLAYED_WRONG.get(name, 0.0)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize(
    "reply",
    ["", " ", "\n", "?", "{}", "[", "[]", "null", "<tool_call></tool_call>", "Guess:", "9" * 50, "é\u0000☃"],
)
def test_no_reply_upsets_a_checker_and_none_of_these_is_right(name, reply):
    for problem in problems(name)[::20]:
        said = replies(converse(problem, lambda _: reply))
        assert not problem.check(said), (problem, said)
        problem.well_formed(said)


@pytest.mark.parametrize("name", TASKS)
def test_every_problem_ends(name):
    for problem in problems(name)[::20]:
        assert len(converse(problem, lambda _: "Is it alive?")) < 50


@pytest.mark.parametrize("name", TASKS)
def test_conversations_alternate_and_start_with_the_user(name):
    rng = random.Random(0)
    for problem in problems(name)[::10]:
        roles = [m["role"] for m in [*problem.prompt, *solution(problem, rng)]]
        spoken = [role for role in roles if role != "system"]
        assert "system" not in roles[1:]
        assert spoken[0] == "user"
        assert spoken[-1] == "assistant"
        assert all((a == "assistant") != (b == "assistant") for a, b in itertools.pairwise(spoken))


def test_an_unknown_task_names_the_known_ones():
    with pytest.raises(ValueError, match="arithmetic, chat"):
        get_task("juggling")


def test_keys_too_few_to_split_are_an_error_and_not_an_endless_search():
    from tinker_cookbook.tasks.arithmetic import Arithmetic

    with pytest.raises(ValueError, match="too few to split"):
        Arithmetic(one_digit=0, largest=0).problem("test", 0)


def test_kinds_of_problems_can_be_chosen():
    letters = {p.key for p in Sort(kinds="letters").problems("train", 20)}
    assert all(
        len(item) == 1 and item.isalpha() for key in letters for item in key.removeprefix("sort: ").split()
    )
    with pytest.raises(ValueError, match="not some of upper, brackets, json, words"):
        Formats(forms=())
