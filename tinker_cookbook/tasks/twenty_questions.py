"""Twenty questions over a closed list of nouns, from either chair: who asks, and who answers."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tinker_cookbook.tasks.types import Message, Problem, Task, system, user

# What can be asked: a property, and the ways to ask for it.
PROPERTIES = {
    "alive": ("Is it alive?", "Is it a living thing?"),
    "animal": ("Is it an animal?", "Is it some kind of animal?"),
    "flies": ("Can it fly?", "Does it fly?"),
    "water": ("Is it found in water?", "Does it belong in the water?"),
    "big": ("Is it bigger than a person?", "Is it very big?"),
    "food": ("Can you eat it?", "Is it food?"),
    "metal": ("Is it made of metal?", "Is there metal in it?"),
    "house": ("Is it found in a house?", "Do people keep it at home?"),
    "legs": ("Does it have legs?", "Has it got legs?"),
    "moves": ("Can it move by itself?", "Does it move by itself?"),
    "soft": ("Is it soft?", "Does it feel soft?"),
    "old": ("Is it older than people?", "Was it there before people?"),
}
THINGS = {
    noun: frozenset(properties.split())
    for noun, properties in {
        "cat": "alive animal house legs moves soft",
        "dog": "alive animal house legs moves soft",
        "horse": "alive animal big legs moves",
        "cow": "alive animal big legs moves",
        "whale": "alive animal water big moves",
        "fish": "alive animal water food moves",
        "shark": "alive animal water big moves old",
        "frog": "alive animal water legs moves soft",
        "crab": "alive animal water food legs moves",
        "duck": "alive animal flies water food legs moves soft",
        "owl": "alive animal flies legs moves soft",
        "eagle": "alive animal flies legs moves",
        "bee": "alive animal flies legs moves",
        "ant": "alive animal house legs moves",
        "spider": "alive animal house legs moves old",
        "snake": "alive animal moves",
        "turtle": "alive animal water legs moves old",
        "mouse": "alive animal house legs moves soft old",
        "tree": "alive big",
        "rose": "alive house",
        "grass": "alive soft",
        "apple": "alive food house",
        "bread": "food house soft",
        "cheese": "food soft",
        "egg": "food",
        "honey": "food house soft old",
        "salt": "food house old water",
        "soup": "food house soft water",
        "key": "metal house",
        "knife": "metal house",
        "spoon": "metal food house",
        "coin": "metal",
        "bell": "metal",
        "sword": "metal old",
        "ship": "metal water big moves",
        "boat": "water big",
        "plane": "metal flies big moves",
        "train": "metal big moves",
        "car": "metal big moves house",
        "bicycle": "metal house moves",
        "chair": "legs house",
        "table": "legs house big",
        "bed": "legs house soft big",
        "lamp": "metal house",
        "book": "house",
        "pillow": "house soft",
        "coat": "house soft",
        "cloud": "flies soft big old moves",
        "river": "water big old moves",
        "moon": "big old moves",
        "stone": "old",
        "mountain": "big old",
    }.items()
}
OPENINGS = (
    "Let us play twenty questions. I think of a thing, you ask.",
    "Guess the thing I am thinking of. Ask yes or no questions.",
    "I have a thing in mind. Ask me questions and guess it.",
)
SECRETS = ("The thing is: {thing}. Answer yes or no.", "You are thinking of: {thing}. Say yes or no.")
_GUESS = re.compile(r"Guess: (\w+)")
_QUESTION = {text: name for name, texts in PROPERTIES.items() for text in texts}


def parse_guess(reply: str) -> str | None:
    found = _GUESS.fullmatch(reply.strip())
    return found[1].lower() if found else None


def asked_property(reply: str) -> str | None:
    """The property a reply asks for, if it is one of the known questions."""
    return _QUESTION.get(reply.strip())


@dataclass(frozen=True)
class Asking(Problem):
    """The assistant asks; the thing is right when it is guessed within so many turns."""

    thing: str
    opening: str
    max_turns: int = 20

    @property
    def key(self) -> str:
        return f"ask: {self.thing} {self.opening}"

    @property
    def prompt(self) -> list[Message]:
        return [user(self.opening)]

    def respond(self, replies: Sequence[str]) -> Message | None:
        if parse_guess(replies[-1]) is not None or len(replies) == self.max_turns:
            return None
        name = asked_property(replies[-1])
        if name is None:
            return user("Please ask a yes or no question.")
        return user("Yes." if name in THINGS[self.thing] else "No.")

    def check(self, replies: Sequence[str]) -> bool:
        return self.well_formed(replies) and parse_guess(replies[-1]) == self.thing

    def well_formed(self, replies: Sequence[str]) -> bool:
        *questions, last = replies
        ends = parse_guess(last) is not None or (
            asked_property(last) is not None and len(replies) == self.max_turns
        )
        return ends and all(asked_property(reply) is not None for reply in questions)

    def candidates(self, replies: Sequence[str]) -> list[str]:
        asked = [name for name in map(asked_property, replies) if name is not None]
        own = THINGS[self.thing]
        return [t for t, has in THINGS.items() if all((name in has) == (name in own) for name in asked)]

    def right_reply(self, replies: Sequence[str], rng: random.Random) -> str:
        """A question that tells the remaining things apart, or a guess when few remain or the turns run out."""
        left = self.candidates(replies)
        useful = [name for name in PROPERTIES if 0 < sum(name in THINGS[t] for t in left) < len(left)]
        if len(left) <= 2 or not useful or len(replies) == self.max_turns - 1:
            return f"Guess: {rng.choice(left)}"
        return rng.choice(PROPERTIES[rng.choice(useful)])

    def wrong_reply(self, replies: Sequence[str], rng: random.Random) -> str:
        """A question that was asked before or tells nothing, or a guess too early."""
        if rng.random() < 0.3:
            return f"Guess: {rng.choice(list(THINGS))}"
        return rng.choice(PROPERTIES[rng.choice(list(PROPERTIES))])


@dataclass(frozen=True)
class Answering(Problem):
    """The assistant knows the thing and answers one question about it."""

    thing: str
    secret: str  # how it is told
    question: str

    @property
    def key(self) -> str:
        return f"answer: {self.thing} {self.question}"

    @property
    def prompt(self) -> list[Message]:
        return [system(self.secret.format(thing=self.thing)), user(self.question)]

    @property
    def answer(self) -> str:
        return "Yes." if _QUESTION[self.question] in THINGS[self.thing] else "No."

    def check(self, replies: Sequence[str]) -> bool:
        return replies[-1].strip().removesuffix(".") == self.answer.removesuffix(".")

    def well_formed(self, replies: Sequence[str]) -> bool:
        return replies[-1].strip() in ("Yes", "Yes.", "No", "No.")

    def right_reply(self, replies: Sequence[str], rng: random.Random) -> str:
        return self.answer

    def wrong_reply(self, replies: Sequence[str], rng: random.Random) -> str:
        return "No." if self.answer == "Yes." else "Yes."


class AskQuestions(Task[Asking]):
    """Find out what the other one thinks of, by questions with yes or no"""

    name = "ask_questions"

    def draw(self, rng: random.Random) -> Asking:
        return Asking(rng.choice(list(THINGS)), rng.choice(OPENINGS))


class AnswerQuestions(Task[Answering]):
    """Answer such questions about a thing, with yes or no"""

    name = "answer_questions"

    def draw(self, rng: random.Random) -> Answering:
        return Answering(rng.choice(list(THINGS)), rng.choice(SECRETS), rng.choice(list(_QUESTION)))
