"""Sums and differences of numbers from 0 to 100, asked in several ways, with or without thinking first."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tinker_cookbook.tasks.types import Message, Problem, Task, system, user

PHRASINGS = (
    "What is {a} {op} {b}?",
    "{a} {op} {b} = ?",
    "Work out {a} {op} {b}.",
    "Calculate {a} {op} {b}.",
    "How much is {a} {word} {b}?",
    "{a}{op}{b}",
)
THINK = "Think first."
_WORDS = {"+": "plus", "-": "minus"}
_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)


def last_integer(text: str) -> int | None:
    """The last whole number outside of thinking; a dash counts as a sign where no number stands before it."""
    found = re.findall(r"(?<![\d.])-?\d+(?![\d.]*\.\d)", _THOUGHT.sub(" ", text).replace(",", ""))
    return int(found[-1]) if found else None


@dataclass(frozen=True)
class Sum(Problem):
    a: int
    op: str  # + or -
    b: int
    phrasing: str = PHRASINGS[0]
    think: bool = False

    @property
    def key(self) -> str:
        """The same for 15 + 27 as for 27 + 15: who has seen one has seen the other."""
        a, b = (max(self.a, self.b), min(self.a, self.b)) if self.op == "+" else (self.a, self.b)
        return f"{a}{self.op}{b}"

    @property
    def answer(self) -> int:
        return self.a + self.b if self.op == "+" else self.a - self.b

    @property
    def question(self) -> str:
        return self.phrasing.format(a=self.a, op=self.op, b=self.b, word=_WORDS[self.op])

    @property
    def prompt(self) -> list[Message]:
        return [*([system(THINK)] if self.think else []), user(self.question)]

    def check(self, replies: Sequence[str]) -> bool:
        return last_integer(replies[-1]) == self.answer

    def well_formed(self, replies: Sequence[str]) -> bool:
        return last_integer(replies[-1]) is not None and ("<think>" in replies[-1]) == self.think

    def right_reply(self, replies: Sequence[str], rng: random.Random) -> str:
        return self._written(self.answer)

    def wrong_reply(self, replies: Sequence[str], rng: random.Random) -> str:
        return self._written(slip(self.answer, rng))

    def _written(self, answer: int) -> str:
        return f"<think>{self._columns()}</think>{answer}" if self.think else str(answer)

    def _columns(self) -> str:
        """Ones, then tens, with what is carried or borrowed: 27 + 15 as `7+5=12, 2+1+1=4`."""
        (ta, oa), (tb, ob) = divmod(self.a, 10), divmod(self.b, 10)
        if self.op == "+":
            carried = oa + ob >= 10
            return f"{oa}+{ob}={oa + ob}, {ta}+{tb}{'+1' if carried else ''}={ta + tb + carried}"
        borrowed = oa < ob
        ones = oa + 10 * borrowed
        return f"{ones}-{ob}={ones - ob}, {ta}-{tb}{'-1' if borrowed else ''}={ta - tb - borrowed}"


def slip(answer: int, rng: random.Random) -> int:
    """A wrong number near the right one: off by a little, by a ten, or with its digits the wrong way round."""
    swapped = int(str(abs(answer))[::-1])
    wrong = {answer + d for d in (-10, -2, -1, 1, 2, 10)} | {swapped}
    return rng.choice(sorted(n for n in wrong if n >= 0 and n != answer))


class Arithmetic(Task[Sum]):
    name = "arithmetic"

    def __init__(
        self, *, think: float = 0.2, one_digit: float = 0.3, largest: int = 100, operations: str = "+-"
    ):
        self.think = think  # share of problems that ask for thinking first
        self.one_digit = one_digit  # share of problems whose numbers have one digit
        self.largest = largest
        self.operations = operations

    def draw(self, rng: random.Random) -> Sum:
        top = 9 if rng.random() < self.one_digit else self.largest
        a, b, op = rng.randint(0, top), rng.randint(0, top), rng.choice(self.operations)
        if op == "-" and a < b:
            a, b = b, a
        return Sum(a, op, b, phrasing=rng.choice(PHRASINGS), think=rng.random() < self.think)
