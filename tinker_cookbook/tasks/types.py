"""What a task is: problems without end, each with a prompt, a checker, and examples of right and wrong replies.

Tasks know nothing of tokens, models or rewards. A data set, an environment or an evaluation is made of one by asking
it for problem number i of a split; the same (task, seed, split, i) is the same problem on every machine.
"""

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Generic, Literal, TypedDict, TypeVar

Split = Literal["train", "test"]

TEST_SHARE = 10  # one problem in this many is kept for the test split
MAX_DRAWS = 1000


class Message(TypedDict):
    """One turn. Content is the text as a model reads and writes it, with thinking and tool calls inline."""

    role: str
    content: str


class ToolSpec(TypedDict):
    """A tool as a model is told of it."""

    name: str
    description: str
    parameters: dict[str, object]  # a JSON schema


class Problem(ABC):
    """One instance of a task. Replies are what the assistant wrote so far, one string a turn."""

    tools: tuple[ToolSpec, ...] = ()

    @property
    @abstractmethod
    def key(self) -> str:
        """What has to be generalised over: two problems with one key are never in different splits."""

    @property
    @abstractmethod
    def prompt(self) -> list[Message]:
        """The conversation before the first reply."""

    @abstractmethod
    def check(self, replies: Sequence[str]) -> bool:
        """Whether these replies, the whole of them, are right."""

    def respond(self, replies: Sequence[str]) -> Message | None:
        """What the assistant hears after these replies; None when the problem is over, as most are after one."""
        return None

    def well_formed(self, replies: Sequence[str]) -> bool:
        """Whether the replies have the asked form, right or wrong; all a task without a form can ask is text."""
        return all(reply.strip() for reply in replies)

    @abstractmethod
    def right_reply(self, replies: Sequence[str], rng: random.Random) -> str:
        """One of the good next turns after these replies."""

    @abstractmethod
    def wrong_reply(self, replies: Sequence[str], rng: random.Random) -> str:
        """A mistake that a careless writer might make here."""

    @property
    def split(self) -> Split:
        digest = hashlib.sha256(self.key.encode()).digest()
        return "test" if int.from_bytes(digest[:8], "big") % TEST_SHARE == 0 else "train"


def chosen(names: str | Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Some of the known ones, as a list or as a command line has it: `letters+numbers`."""
    some = tuple(names.split("+")) if isinstance(names, str) else tuple(names)
    if not some or not set(some) <= set(known):
        raise ValueError(f"{names!r} is not some of {', '.join(known)}")
    return some


ProblemT = TypeVar("ProblemT", bound=Problem, covariant=True)


class Task(ABC, Generic[ProblemT]):
    """Problems of one kind, without end and by number."""

    name: ClassVar[str]

    @abstractmethod
    def draw(self, rng: random.Random) -> ProblemT:
        """A random problem of either split."""

    def problem(self, split: Split, index: int, *, seed: int = 0) -> ProblemT:
        """Problem number `index`. Small indices may repeat a key within a split, never across splits."""
        rng = random.Random(f"{self.name}/{seed}/{split}/{index}")
        for _ in range(MAX_DRAWS):
            if (drawn := self.draw(rng)).split == split:
                return drawn
        raise ValueError(
            f"{self.name}: no {split} problem in {MAX_DRAWS} draws; its keys are too few to split"
        )

    def problems(self, split: Split, count: int, *, seed: int = 0) -> Iterator[ProblemT]:
        return (self.problem(split, index, seed=seed) for index in range(count))


Writer = Callable[[Sequence[str]], str]


def converse(problem: Problem, write: Writer) -> list[Message]:
    """The turns after the prompt when `write` gives the assistant's, until the problem is over."""
    replies: list[str] = []
    turns: list[Message] = []
    while True:
        replies.append(write(replies))
        turns.append({"role": "assistant", "content": replies[-1]})
        heard = problem.respond(replies)
        if heard is None:
            return turns
        turns.append(heard)


def solution(problem: Problem, rng: random.Random) -> list[Message]:
    """A right continuation of the prompt."""
    return converse(problem, lambda replies: problem.right_reply(replies, rng))


def careless(problem: Problem, rng: random.Random, mistakes: float) -> list[Message]:
    """A continuation whose writer slips with probability `mistakes` at every turn."""

    def write(replies: Sequence[str]) -> str:
        slip = rng.random() < mistakes
        return problem.wrong_reply(replies, rng) if slip else problem.right_reply(replies, rng)

    return converse(problem, write)


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def system(content: str) -> Message:
    return {"role": "system", "content": content}
