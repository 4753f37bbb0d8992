"""Greetings and thanks, and being asked to tell something about somebody."""

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass

from tinker_cookbook.tasks.types import Message, Problem, Task, user
from tinker_cookbook.tasks.world import PEOPLE, TOWNS, about, capital, other_answer

EXCHANGES: dict[tuple[str, ...], tuple[str, ...]] = {
    ("Hello!", "Hi!", "Hello there.", "Good morning!"): (
        "Hello! How can I help you?",
        "Hi! What would you like to know?",
    ),
    ("Who are you?", "What are you?", "What is your name?"): ("I am Tiny, a very small language model.",),
    ("What can you do?", "How can you help me?"): (
        "I can do sums, sort lists, play games and talk about six towns.",
        "Ask me about a town, a person or a sum.",
    ),
    ("Thank you!", "Thanks.", "Thanks a lot!"): ("You are welcome!", "My pleasure."),
    ("Goodbye!", "Bye.", "See you soon."): ("Goodbye!", "See you soon!"),
}
PORTRAITS = ("Tell me about {s}.", "What do you know about {s}?", "Say two things about {s}.")


@dataclass(frozen=True)
class Said(Problem):
    """Whatever is told apart by what was said."""

    said: str

    @property
    def key(self) -> str:
        return self.said

    @property
    def prompt(self) -> list[Message]:
        return [user(self.said)]


@dataclass(frozen=True)
class Exchange(Said):
    answers: tuple[str, ...]

    def check(self, replies: Sequence[str]) -> bool:
        return replies[-1].strip() in self.answers

    def right_reply(self, replies: Sequence[str], rng: random.Random) -> str:
        return rng.choice(self.answers)

    def wrong_reply(self, replies: Sequence[str], rng: random.Random) -> str:
        return rng.choice(
            [text for texts in EXCHANGES.values() for text in texts if text not in self.answers]
        )


@dataclass(frozen=True)
class Portrait(Said):
    """Two different true sentences about a person or a town."""

    subject: str

    def check(self, replies: Sequence[str]) -> bool:
        true = {capital(fact.told()) for fact in about(self.subject)}
        told = replies[-1].strip().removesuffix(".").split(". ")
        return len(told) == 2 and told[0] != told[1] and set(told) <= true

    def well_formed(self, replies: Sequence[str]) -> bool:
        return replies[-1].strip().endswith(".") and replies[-1].count(".") == 2

    def right_reply(self, replies: Sequence[str], rng: random.Random) -> str:
        return " ".join(f"{capital(fact.told())}." for fact in rng.sample(about(self.subject), 2))

    def wrong_reply(self, replies: Sequence[str], rng: random.Random) -> str:
        first, second = rng.sample(about(self.subject), 2)
        untrue = dataclasses.replace(second, answer=other_answer(second, rng))
        return f"{capital(first.told())}. {capital(untrue.told())}."


class SmallTalk(Task[Problem]):
    name = "small_talk"

    def draw(self, rng: random.Random) -> Problem:
        if rng.random() < 0.4:
            openings = rng.choice(list(EXCHANGES))
            return Exchange(rng.choice(openings), EXCHANGES[openings])
        subject = rng.choice([*PEOPLE, *TOWNS])
        return Portrait(rng.choice(PORTRAITS).format(s=subject), subject)
