"""Which of two answers is better by a stated rule: the shorter one, or the one whose sum is right."""

import random
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tinker_cookbook.tasks.arithmetic import Arithmetic, slip
from tinker_cookbook.tasks.styles import KNOWN_STYLES, STYLES
from tinker_cookbook.tasks.types import Message, Problem, Task, user
from tinker_cookbook.tasks.world import FACTS

Letter = Literal["A", "B"]
RULES = {
    "shorter": ("Which answer is shorter?", "The shorter answer is better. Which is it?"),
    "correct": ("Which answer is correct?", "The right answer is better. Which is it?"),
}


@dataclass(frozen=True)
class Pair(Problem):
    question: str
    first: str
    second: str
    rule: str
    phrasing: str
    better: Letter
    about: str  # the key of what is judged: a sum that is kept for testing is not judged in training either

    @property
    def key(self) -> str:
        return self.about

    @property
    def prompt(self) -> list[Message]:
        pair = f"Question: {self.question}\nA: {self.first}\nB: {self.second}"
        return [user(f"{pair}\n{self.phrasing} Reply A or B.")]

    def check(self, replies: Sequence[str]) -> bool:
        return replies[-1].strip() == self.better

    def well_formed(self, replies: Sequence[str]) -> bool:
        return replies[-1].strip() in ("A", "B")

    def right_reply(self, replies: Sequence[str], rng: random.Random) -> str:
        return self.better

    def wrong_reply(self, replies: Sequence[str], rng: random.Random) -> str:
        return "B" if self.better == "A" else "A"


@dataclass(frozen=True)
class Judged:
    key: str
    question: str
    good: str
    bad: str


class Judge(Task[Pair]):
    """Pairs under one of the rules."""

    rule: str

    @abstractmethod
    def pair(self, rng: random.Random) -> Judged:
        """Something to judge."""

    def draw(self, rng: random.Random) -> Pair:
        judged = self.pair(rng)
        phrasing = rng.choice(RULES[self.rule])
        better: Letter = "A" if rng.random() < 0.5 else "B"
        first, second = (judged.good, judged.bad) if better == "A" else (judged.bad, judged.good)
        return Pair(judged.question, first, second, self.rule, phrasing, better, judged.key)


class JudgeShorter(Judge):
    """Say which of two answers is the shorter one"""

    name = "judge_shorter"
    rule = "shorter"

    def pair(self, rng: random.Random) -> Judged:
        """Two styles of one answer, counted in characters."""
        fact = rng.choice(FACTS)
        question = rng.choice(fact.relation.questions).format(s=fact.subject)
        while True:
            first, second = (STYLES[name].say(fact, rng) for name in rng.sample(KNOWN_STYLES, 2))
            if abs(len(first) - len(second)) >= 4:
                shorter, longer = (first, second) if len(first) < len(second) else (second, first)
                return Judged(f"shorter: {question}", question, shorter, longer)


class JudgeCorrect(Judge):
    """Say which of two answers to a sum is right"""

    name = "judge_correct"
    rule = "correct"

    def pair(self, rng: random.Random) -> Judged:
        problem = Arithmetic(think=0).draw(rng)
        wrong = slip(problem.answer, rng)
        return Judged(problem.key, problem.question, str(problem.answer), str(wrong))
