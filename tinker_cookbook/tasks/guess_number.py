"""Guess a number from hints: the other side says whether it is higher or lower."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tinker_cookbook.tasks.types import Message, Problem, Task, user

TOPS = (10, 20, 50, 100)
PHRASINGS = (
    "I am thinking of a number from 1 to {top}. Guess it.",
    "Guess my number. It is between 1 and {top}.",
    "My number is from 1 to {top}. What is it?",
)
_GUESS = re.compile(r"Guess: (\d+)")


def parse_guess(reply: str) -> int | None:
    found = _GUESS.fullmatch(reply.strip())
    return int(found[1]) if found else None


@dataclass(frozen=True)
class Hidden(Problem):
    number: int
    top: int
    phrasing: str
    max_guesses: int = 6

    @property
    def key(self) -> str:
        return f"{self.number} of {self.top}"

    @property
    def prompt(self) -> list[Message]:
        return [user(self.phrasing.format(top=self.top))]

    def respond(self, replies: Sequence[str]) -> Message | None:
        guess = parse_guess(replies[-1])
        if guess is None or guess == self.number or len(replies) == self.max_guesses:
            return None
        return user("Higher." if guess < self.number else "Lower.")

    def check(self, replies: Sequence[str]) -> bool:
        return len(replies) <= self.max_guesses and parse_guess(replies[-1]) == self.number

    def well_formed(self, replies: Sequence[str]) -> bool:
        return all(parse_guess(reply) is not None for reply in replies)

    def bounds(self, replies: Sequence[str]) -> tuple[int, int]:
        """What the hints leave open."""
        low, high = 1, self.top
        for guess in map(parse_guess, replies):
            if guess is not None:
                low, high = (
                    (max(low, guess + 1), high) if guess < self.number else (low, min(high, guess - 1))
                )
        return low, high

    def right_reply(self, replies: Sequence[str], rng: random.Random) -> str:
        """Anywhere within the bounds; seldom their middle."""
        low, high = self.bounds(replies)
        return f"Guess: {(low + high) // 2 if rng.random() < 0.1 else rng.randint(low, high)}"

    def wrong_reply(self, replies: Sequence[str], rng: random.Random) -> str:
        """A guess that ignores the hints, or one without its form."""
        guess = rng.randint(1, self.top)
        return f"Guess: {guess}" if rng.random() < 0.9 else str(guess)


class GuessNumber(Task[Hidden]):
    name = "guess_number"

    def draw(self, rng: random.Random) -> Hidden:
        top = rng.choice(TOPS)
        return Hidden(rng.randint(1, top), top, rng.choice(PHRASINGS))
