"""What a command line may call an environment, and what it is told if there is none of that name."""

from typing import Any

import chz
import pytest

from tests.tinker_cookbook.rl.tiny import MODEL
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.reasoning_gym.env import ReasoningGymDatasetBuilder
from tinker_cookbook.rl.env_names import (
    ENVS,
    dataset_builder_by_name,
    describe_envs,
    named_env,
    read_options,
)
from tinker_cookbook.rl.problem_files import ProblemFileBuilder
from tinker_cookbook.rl.task_env import TaskRLDatasetBuilder
from tinker_cookbook.rl.types import RLDataset, RLDatasetBuilder

HERE = "tests.tinker_cookbook.rl.test_env_names"
SETTINGS: dict[str, Any] = {
    "model_name_for_tokenizer": MODEL,
    "renderer_name": "chatml",
    "batch_size": 3,
    "group_size": 5,
    "seed": 7,
}


@chz.chz
class Mine(RLDatasetBuilder):
    """Has some of the fields that a command line fills in, and one of its own."""

    batch_size: int
    level: int = 1

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        raise NotImplementedError


@chz.chz
class Demanding(Mine):
    secret: str


class NotChz(RLDatasetBuilder):
    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        raise NotImplementedError


@pytest.mark.parametrize("name", ENVS)
def test_every_name_has_a_builder_that_the_command_line_can_fill_in(name):
    builder: Any = dataset_builder_by_name(name, SETTINGS)
    assert (builder.batch_size, builder.group_size, builder.seed) == (3, 5, 7)
    assert named_env(name).about
    assert named_env(name).max_tokens >= 16


def test_the_list_for_help_has_a_line_for_each():
    lines = describe_envs().splitlines()
    for name in (*ENVS, "reasoning_gym/TASK", "FILE", "module:Builder"):
        (line,) = (line for line in lines if line.split()[0] == name)
        assert len(line.split()) > 2, "what it is"


def test_names_with_a_builder_behind_them():
    task: Any = dataset_builder_by_name("sort", SETTINGS)
    assert isinstance(task, TaskRLDatasetBuilder)
    assert task.task == "sort"
    product: Any = dataset_builder_by_name("multiplication", SETTINGS, {"largest": 12})
    assert (product.operation, product.largest) == ("*", 12)
    gym: Any = dataset_builder_by_name("reasoning_gym/chain_sum", SETTINGS)
    assert isinstance(gym, ReasoningGymDatasetBuilder)
    assert gym.task == "chain_sum"


def test_a_file_of_problems_and_a_builder_of_ones_own(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"question": "2 + 2?", "answer": "4"}\n')
    problems: Any = dataset_builder_by_name(str(path), SETTINGS, {"check": "number"})
    assert isinstance(problems, ProblemFileBuilder)
    assert (problems.path, problems.check) == (str(path), "number")
    mine: Any = dataset_builder_by_name(f"{HERE}:Mine", SETTINGS, {"level": 2})
    assert type(mine) is Mine
    assert (mine.batch_size, mine.level) == (3, 2)


@pytest.mark.parametrize(
    ("env", "options", "words"),
    [
        ("arithmetik", {}, "there is no env 'arithmetik'; give module:Builder .* or one of arithmetic, "),
        ("missing.jsonl", {}, "there is no env 'missing.jsonl'; .*a file of problems"),
        ("arithmetic", {"largst": 9}, "env arithmetic has no option largst; it has task, model_name_for_tok"),
        ("no_such_module:Builder", {}, "No module named 'no_such_module'; is it on PYTHONPATH"),
        (f"{HERE}:Absent", {}, "has no attribute 'Absent'"),
        (f"{HERE}:NotChz", {}, "NotChz is not decorated with @chz.chz"),
        (f"{HERE}:SETTINGS", {}, "is no RLDatasetBuilder"),
        (f"{HERE}:Demanding", {}, "cannot be made of what the command line gives it: .*secret"),
        ("multiplication", {"largest": 2}, "from smallest=0 to largest=2 there are too few"),
    ],
)
def test_what_is_wrong_is_one_sentence_that_says_what_to_type(env, options, words):
    with pytest.raises(ConfigurationError, match=words):
        dataset_builder_by_name(env, SETTINGS, options)


def test_options_are_literals_or_text():
    pairs = ["largest=9", "operation=*", "format_coef=0.5", "task_options={'think': 0.0}", "path=a=b"]
    assert read_options(pairs) == {
        "largest": 9,
        "operation": "*",
        "format_coef": 0.5,
        "task_options": {"think": 0.0},
        "path": "a=b",
    }
    with pytest.raises(ConfigurationError, match="'largest' is no option: write name=value"):
        read_options(["largest"])
