"""Answers in an asked form: upper case, brackets, JSON, or an exact number of words."""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tinker_cookbook.tasks.types import Message, Problem, Task, chosen, user
from tinker_cookbook.tasks.world import FACTS, Fact

REQUESTS = {
    "upper": ("Answer in upper case.", "Use upper case only."),
    "brackets": ("Answer in brackets.", "Put the answer in brackets."),
    "json": ("Answer as JSON.", "Reply in JSON."),
}
TOPICS = (
    "sea sky hill road moon sun river forest garden winter summer night house boat horse dog cat owl bread soup song "
    "tower bridge market stone snow rain wind fire lake"
).split()
ADJECTIVES = (
    "big small old new blue green dark bright cold warm quiet loud soft hard happy sad clean deep wild kind"
).split()
# Patterns by their number of words: t the topic, a b c adjectives.
PATTERNS = {
    2: ("{a} {t}",),
    3: ("the {a} {t}", "{a} {b} {t}", "{t} is {a}"),
    4: ("the {t} is {a}", "the {a} {b} {t}", "a {a} {b} {t}"),
    5: ("the {a} {t} is {b}", "the {t} is very {a}", "I like the {a} {t}"),
    6: ("the {t} is {a} and {b}", "the {a} {t} is very {b}", "we like the {a} {b} {t}"),
    7: ("the {a} {t} is {b} and {c}", "the {t} is very {a} and {b}", "I know a {t} that is {a}"),
}
WORD_REQUESTS = (
    "Describe the {topic} in exactly {n} words.",
    "Say something about the {topic} in {n} words.",
    "Write {n} words about the {topic}.",
)


@dataclass(frozen=True)
class Formatted(Problem):
    fact: Fact
    asked: str
    form: str
    request: str

    @property
    def key(self) -> str:
        return f"{self.form}: {self.asked}"

    @property
    def prompt(self) -> list[Message]:
        return [user(f"{self.asked} {self.request}")]

    def check(self, replies: Sequence[str]) -> bool:
        reply = replies[-1].strip()
        if not self.well_formed(replies):
            return False
        content = {
            "upper": lambda: reply,
            "brackets": lambda: reply[1:-1],
            "json": lambda: json.loads(reply)["answer"],
        }
        return content[self.form]().lower() == self.fact.answer.lower()

    def well_formed(self, replies: Sequence[str]) -> bool:
        reply = replies[-1].strip()
        if self.form == "upper":
            return reply.isupper()
        if self.form == "brackets":
            return re.fullmatch(r"\[[^\[\]]+\]", reply) is not None
        try:
            content = json.loads(reply)
        except ValueError:
            return False
        return (
            isinstance(content, dict) and list(content) == ["answer"] and isinstance(content["answer"], str)
        )

    def right_reply(self, replies: Sequence[str], rng: random.Random) -> str:
        return _FORMS[self.form](self.fact.answer)

    def wrong_reply(self, replies: Sequence[str], rng: random.Random) -> str:
        """Another form, or this one with a part missing."""
        answer = self.fact.answer
        others = [write(answer) for form, write in _FORMS.items() if form != self.form]
        broken = {"upper": answer.capitalize(), "brackets": f"[{answer}", "json": f'{{"answer": {answer}}}'}
        return rng.choice([*others, answer, broken[self.form]])


_FORMS = {
    "upper": str.upper,
    "brackets": lambda answer: f"[{answer}]",
    "json": lambda answer: json.dumps({"answer": answer}),
}


@dataclass(frozen=True)
class Counted(Problem):
    """So many words about a topic, neither more nor fewer."""

    topic: str
    count: int
    request: str

    @property
    def key(self) -> str:
        return f"{self.count} words: {self.topic}"

    @property
    def prompt(self) -> list[Message]:
        return [user(self.request.format(topic=self.topic, n=self.count))]

    def check(self, replies: Sequence[str]) -> bool:
        words = replies[-1].lower().removesuffix(".").split()
        return self.well_formed(replies) and len(words) == self.count and self.topic in words

    def well_formed(self, replies: Sequence[str]) -> bool:
        return re.fullmatch(r"[A-Za-z]+( [A-Za-z]+)*\.?", replies[-1].strip()) is not None

    def right_reply(self, replies: Sequence[str], rng: random.Random) -> str:
        return self._written(self.count, rng)

    def wrong_reply(self, replies: Sequence[str], rng: random.Random) -> str:
        return self._written(
            rng.choice([n for n in PATTERNS if n != self.count and abs(n - self.count) < 3]), rng
        )

    def _written(self, count: int, rng: random.Random) -> str:
        a, b, c = rng.sample(ADJECTIVES, 3)
        return rng.choice(PATTERNS[count]).format(t=self.topic, a=a, b=b, c=c)


FORMS = ("upper", "brackets", "json", "words")


class Formats(Task[Problem]):
    name = "formats"

    def __init__(self, *, forms: str | Sequence[str] = FORMS):
        self.forms = chosen(forms, FORMS)

    def draw(self, rng: random.Random) -> Problem:
        form = rng.choice(self.forms)
        if form == "words":
            return Counted(rng.choice(TOPICS), rng.choice(list(PATTERNS)), rng.choice(WORD_REQUESTS))
        fact = rng.choice(FACTS)
        asked = rng.choice(fact.relation.questions).format(s=fact.subject)
        return Formatted(fact, asked, form, rng.choice(REQUESTS[form]))
