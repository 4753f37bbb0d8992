"""Small verifiable tasks: seeded problems with a train and a test split, a checker, and right and wrong replies.

from tinker_cookbook.tasks import get_task
problem = get_task("arithmetic").problem("train", 0)
problem.prompt, problem.check(["42"])
"""

from tinker_cookbook.tasks.arithmetic import Arithmetic
from tinker_cookbook.tasks.chat import Chat
from tinker_cookbook.tasks.formats import Formats
from tinker_cookbook.tasks.guess_number import GuessNumber
from tinker_cookbook.tasks.judge import JudgeCorrect, JudgeShorter
from tinker_cookbook.tasks.lists import Compare, Copy, Reverse, Sort
from tinker_cookbook.tasks.small_talk import SmallTalk
from tinker_cookbook.tasks.tictactoe import TicTacToe
from tinker_cookbook.tasks.tools import Tools
from tinker_cookbook.tasks.twenty_questions import AnswerQuestions, AskQuestions
from tinker_cookbook.tasks.types import Message, Problem, Split, Task, ToolSpec, careless, converse, solution

__all__ = [
    "TASKS",
    "Message",
    "Problem",
    "Split",
    "Task",
    "ToolSpec",
    "careless",
    "converse",
    "get_task",
    "solution",
]

TASKS: dict[str, type[Task[Problem]]] = {
    task.name: task
    for task in (
        Arithmetic,
        Chat,
        SmallTalk,
        Formats,
        Copy,
        Reverse,
        Sort,
        Compare,
        Tools,
        TicTacToe,
        GuessNumber,
        AskQuestions,
        AnswerQuestions,
        JudgeShorter,
        JudgeCorrect,
    )
}


def get_task(name: str) -> Task[Problem]:
    """The task of this name with its usual settings."""
    if name not in TASKS:
        raise ValueError(f"there is no task {name!r}; tasks are: {', '.join(TASKS)}")
    return TASKS[name]()
