"""Reverse, copy and sort short lists and words; compare two numbers or words."""

import random
import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from tinker_cookbook.tasks.types import Message, Problem, Task, chosen, user

NOUNS = (
    "apple arrow bird boat book bread bridge candle cart cat cloud coat cup dog door egg fire fish flag forest frog "
    "garden gate glass hat hill horse house island jar key king lake lamp leaf letter map milk moon nest night ocean "
    "owl paint pear pen river road rock rope rose salt ship snow song star stone sun table tower town tree wall water "
    "wind window winter wolf wood"
).split()
LETTERS = "abcdefghijklmnopqrstuvwxyz"
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"


def made_up_word(rng: random.Random, length: int) -> str:
    start = rng.randrange(2)
    return "".join(rng.choice((_CONSONANTS, _VOWELS)[(start + i) % 2]) for i in range(length))


KINDS = ("words", "numbers", "letters")


def random_items(rng: random.Random, count: int, kinds: Sequence[str] = KINDS) -> tuple[str, ...]:
    """Words, numbers or letters, all different."""
    kind = rng.choice(kinds)
    pool = {"words": NOUNS, "numbers": [str(n) for n in range(100)], "letters": list(LETTERS)}[kind]
    return tuple(rng.sample(pool, count))


class OneAnswer(Problem):
    """A problem with a single right text, compared without regard to a final full stop or outer space."""

    @property
    @abstractmethod
    def answer(self) -> str: ...

    @property
    @abstractmethod
    def question(self) -> str: ...

    @property
    def prompt(self) -> list[Message]:
        return [user(self.question)]

    def check(self, replies: Sequence[str]) -> bool:
        return replies[-1].strip().removesuffix(".").strip() == self.answer

    def right_reply(self, replies: Sequence[str], rng: random.Random) -> str:
        return self.answer


def _ordered(items: Sequence[str]) -> list[str]:
    return sorted(items, key=lambda item: (int(item), "") if item.isdigit() else (0, item))


@dataclass(frozen=True)
class Rearranged(OneAnswer):
    """A list to copy, reverse or sort."""

    verb: str
    items: tuple[str, ...]
    phrasing: str

    @property
    def question(self) -> str:
        return self.phrasing.format(items=", ".join(self.items))

    @property
    def key(self) -> str:
        return f"{self.verb}: {' '.join(self.items)}"

    @property
    def answer(self) -> str:
        rearrange = {"copy": list, "reverse": lambda items: items[::-1], "sort": _ordered}[self.verb]
        return ", ".join(rearrange(self.items))

    def well_formed(self, replies: Sequence[str]) -> bool:
        return re.fullmatch(r"\w+(, \w+)+", replies[-1].strip()) is not None

    def wrong_reply(self, replies: Sequence[str], rng: random.Random) -> str:
        """Two neighbours swapped, one left out, or one said twice."""
        items = self.answer.split(", ")
        at = rng.randrange(len(items) - 1)
        kind = rng.choice(("swap", "drop", "twice"))
        if kind == "swap" or len(items) == 2:
            items[at], items[at + 1] = items[at + 1], items[at]
        elif kind == "drop":
            del items[at]
        else:
            items[at] = items[at + 1]
        return ", ".join(items)


@dataclass(frozen=True)
class Respelled(OneAnswer):
    """A made-up word to copy or to spell backwards."""

    verb: str
    word: str
    phrasing: str

    @property
    def question(self) -> str:
        return self.phrasing.format(word=self.word)

    @property
    def key(self) -> str:
        return f"{self.verb}: {self.word}"

    @property
    def answer(self) -> str:
        return self.word[::-1] if self.verb == "reverse" else self.word

    def well_formed(self, replies: Sequence[str]) -> bool:
        return re.fullmatch(r"[a-z]+", replies[-1].strip()) is not None

    def wrong_reply(self, replies: Sequence[str], rng: random.Random) -> str:
        letters = list(self.answer)
        at = rng.randrange(len(letters))
        others = (_VOWELS if letters[at] in _VOWELS else _CONSONANTS).replace(letters[at], "")
        letters[at] = rng.choice(others)
        return "".join(letters)


@dataclass(frozen=True)
class Compared(OneAnswer):
    """Two things, and which of them is larger, smaller, longer, or first in the alphabet."""

    rule: str
    first: str
    second: str
    phrasing: str

    @property
    def question(self) -> str:
        return self.phrasing.format(first=self.first, second=self.second)

    @property
    def key(self) -> str:
        return f"{self.rule}: {' '.join(sorted((self.first, self.second)))}"

    @property
    def answer(self) -> str:
        pair = (self.first, self.second)
        return {
            "larger": lambda: max(pair, key=int),
            "smaller": lambda: min(pair, key=int),
            "longer": lambda: max(pair, key=len),
            "alphabet": lambda: min(pair),
        }[self.rule]()

    def well_formed(self, replies: Sequence[str]) -> bool:
        return replies[-1].strip() in (self.first, self.second)

    def wrong_reply(self, replies: Sequence[str], rng: random.Random) -> str:
        return self.second if self.answer == self.first else self.first


LIST_PHRASINGS = {
    "copy": ("Copy: {items}", "Repeat this list: {items}", "Say this again: {items}"),
    "reverse": ("Reverse: {items}", "Write this list backwards: {items}", "Reverse the list {items}."),
    "sort": ("Sort: {items}", "Put in order: {items}", "Sort this list: {items}"),
}
WORD_PHRASINGS = {
    "copy": ("Copy the word {word}.", "Repeat: {word}"),
    "reverse": ("Reverse the word {word}.", "Spell {word} backwards."),
}
COMPARE_PHRASINGS = {
    "larger": ("Which is larger, {first} or {second}?", "Larger: {first} or {second}?"),
    "smaller": ("Which is smaller, {first} or {second}?", "Smaller: {first} or {second}?"),
    "longer": ("Which word is longer, {first} or {second}?",),
    "alphabet": ("Which comes first in the alphabet, {first} or {second}?",),
}


class Rearrange(Task[Problem]):
    """Copy, reverse or sort; words as well as lists for the first two."""

    def __init__(
        self, *, words: float = 0.3, shortest: int = 2, longest: int = 5, kinds: str | Sequence[str] = KINDS
    ):
        self.words = words  # share of problems on a single made-up word
        self.kinds = chosen(kinds, KINDS)  # of the items of a list
        self.shortest = shortest
        self.longest = longest

    def draw(self, rng: random.Random) -> Problem:
        if self.name in WORD_PHRASINGS and rng.random() < self.words:
            word = made_up_word(rng, rng.randint(max(3, self.shortest), self.longest))
            return Respelled(self.name, word, rng.choice(WORD_PHRASINGS[self.name]))
        items = random_items(rng, rng.randint(self.shortest, self.longest), self.kinds)
        return Rearranged(self.name, items, rng.choice(LIST_PHRASINGS[self.name]))


class Copy(Rearrange):
    """Say a short list or a made-up word again"""

    name = "copy"


class Reverse(Rearrange):
    """Write a short list or a made-up word backwards"""

    name = "reverse"


class Sort(Rearrange):
    """Put words, numbers or letters in order"""

    name = "sort"


class Compare(Task[Compared]):
    """Say which of two numbers or words is larger, longer, or first in the alphabet"""

    name = "compare"

    def draw(self, rng: random.Random) -> Compared:
        rule = rng.choice(list(COMPARE_PHRASINGS))
        if rule in ("larger", "smaller"):
            first, second = (str(n) for n in rng.sample(range(100), 2))
        else:
            first, second = rng.sample(NOUNS, 2)
            while rule == "longer" and len(first) == len(second):
                first, second = rng.sample(NOUNS, 2)
        return Compared(rule, first, second, rng.choice(COMPARE_PHRASINGS[rule]))
