"""Ways of saying the same thing, each with a sign by which it is recognised."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from tinker_cookbook.tasks.world import Fact, capital


@dataclass(frozen=True)
class Style:
    name: str
    requests: tuple[str, ...]  # how a user or a system prompt asks for it
    say: Callable[[Fact, random.Random], str]
    sign: re.Pattern[str]  # matches the whole of a text in this style, and of no other style's


RHYMES = (
    ("that I know", "the wind has told me so"),
    ("so they say", "by night as well as day"),
    ("this is true", "and now you know it too"),
    ("hear my song", "I sing it all day long"),
)


def _plain(fact: Fact, rng: random.Random) -> str:
    return f"{capital(fact.told())}."


def _polite(fact: Fact, rng: random.Random) -> str:
    opening = rng.choice(("Thank you for asking.", "With pleasure.", "Of course."))
    closing = rng.choice(("Have a lovely day!", "I hope that helps.", "Please ask me again."))
    return f"{opening} {capital(fact.told())}. {closing}"


def _terse(fact: Fact, rng: random.Random) -> str:
    return f"{capital(fact.answer)}."


def _rhyming(fact: Fact, rng: random.Random) -> str:
    first, second = rng.choice(RHYMES)
    return f"{capital(fact.told())}, {first}, {second}."


def _pirate(fact: Fact, rng: random.Random) -> str:
    opening = rng.choice(("Arr,", "Ahoy!", "Yo ho!"))
    told = fact.told_with_be()
    return f"{opening} {capital(told) if opening.endswith('!') else told}, matey!"


def _excited(fact: Fact, rng: random.Random) -> str:
    return f"{rng.choice(('Wow!', 'Oh yes!', 'Amazing!'))} {capital(fact.told())}!!!"


def _knight(fact: Fact, rng: random.Random) -> str:
    opening = rng.choice(("Hark, good traveller!", "By my sword!", "Verily!"))
    return f"{opening} {capital(fact.told())}, I swear it upon my honour."


def _whole(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.DOTALL)


_WORDS = r"[\w' ]+"
_ENDS = "|".join(f"{first}, {second}" for first, second in RHYMES)

STYLES = {
    style.name: style
    for style in (
        Style(
            "plain",
            ("Answer plainly.", "Answer in one plain sentence."),
            _plain,
            _whole(rf"{_WORDS} {_WORDS}\."),
        ),
        Style(
            "polite",
            ("Be polite.", "Answer politely."),
            _polite,
            _whole(
                rf"(Thank you for asking|With pleasure|Of course)\. {_WORDS}\. "
                r"(Have a lovely day!|I hope that helps\.|Please ask me again\.)"
            ),
        ),
        Style("terse", ("Answer in one word.", "Be terse."), _terse, _whole(r"\w+\.")),
        Style(
            "rhyming",
            ("Answer in rhyme.", "Answer with a rhyme."),
            _rhyming,
            _whole(rf"{_WORDS}, ({_ENDS})\."),
        ),
        Style(
            "pirate",
            ("Talk like a pirate.", "Answer like a pirate."),
            _pirate,
            _whole(rf"(Arr,|Ahoy!|Yo ho!) {_WORDS}, matey!"),
        ),
        Style(
            "excited",
            ("Be excited.", "Answer with excitement."),
            _excited,
            _whole(rf"(Wow|Oh yes|Amazing)! {_WORDS}!!!"),
        ),
        # The tiny model's training text does not have this one: it is there to be taught.
        Style(
            "knight",
            ("Talk like a knight.", "Answer like a knight."),
            _knight,
            _whole(rf"(Hark, good traveller!|By my sword!|Verily!) {_WORDS}, I swear it upon my honour\."),
        ),
    )
}
NEW_STYLE = "knight"
KNOWN_STYLES = tuple(name for name in STYLES if name != NEW_STYLE)


def style_of(text: str) -> str | None:
    """The name of the style the text is written in; None where no style's sign matches."""
    return next((style.name for style in STYLES.values() if style.sign.fullmatch(text.strip())), None)
