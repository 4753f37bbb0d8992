"""Questions about the made-up world, to be answered in the style that was asked for, or in any."""

import dataclasses
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinker_cookbook.tasks.styles import KNOWN_STYLES, STYLES, style_of
from tinker_cookbook.tasks.types import Message, Problem, Task, system, user
from tinker_cookbook.tasks.world import FACTS, Fact, other_answer

# How people of the made-up world answer when nobody asks for a style.
HABITS: Mapping[str, float] = {
    "plain": 0.5,
    "polite": 0.2,
    "terse": 0.1,
    "rhyming": 0.1,
    "pirate": 0.05,
    "excited": 0.05,
}


@dataclass(frozen=True)
class Question(Problem):
    fact: Fact
    asked: str  # the question itself
    style: str | None = None  # None: any will do
    request: str = ""  # the words that ask for the style
    as_system: bool = False  # whether those words come as a system prompt or after the question

    @property
    def key(self) -> str:
        return f"{self.asked} {self.style}"

    @property
    def prompt(self) -> list[Message]:
        if self.style is None:
            return [user(self.asked)]
        if self.as_system:
            return [system(self.request), user(self.asked)]
        return [user(f"{self.asked} {self.request}")]

    def check(self, replies: Sequence[str]) -> bool:
        words = replies[-1].lower().replace(".", " ").replace(",", " ").replace("!", " ").split()
        return self.well_formed(replies) and self.fact.answer.lower() in words

    def well_formed(self, replies: Sequence[str]) -> bool:
        found = style_of(replies[-1])
        return found is not None and self.style in (None, found)

    def right_reply(self, replies: Sequence[str], rng: random.Random) -> str:
        return STYLES[self._style_used(rng)].say(self.fact, rng)

    def wrong_reply(self, replies: Sequence[str], rng: random.Random) -> str:
        """The wrong style, or something untrue."""
        if self.style is not None and rng.random() < 0.5:
            others = [name for name in KNOWN_STYLES if name != self.style]
            return STYLES[rng.choice(others)].say(self.fact, rng)
        untrue = dataclasses.replace(self.fact, answer=other_answer(self.fact, rng))
        return STYLES[self._style_used(rng)].say(untrue, rng)

    def _style_used(self, rng: random.Random) -> str:
        return self.style or rng.choices(list(HABITS), weights=list(HABITS.values()))[0]


class Chat(Task[Question]):
    name = "chat"

    def __init__(self, *, styles: Sequence[str] = KNOWN_STYLES, asked: float = 0.6):
        self.styles = tuple(styles)  # those that may be asked for
        self.asked = asked  # share of questions that ask for one

    def draw(self, rng: random.Random) -> Question:
        fact = rng.choice(FACTS)
        asked = rng.choice(fact.relation.questions).format(s=fact.subject)
        if rng.random() >= self.asked:
            return Question(fact, asked)
        style = rng.choice(self.styles)
        request = rng.choice(STYLES[style].requests)
        return Question(fact, asked, style, request, as_system=rng.random() < 0.5)
