"""Text to sample from and to train on: common words in a random order, of an exact number of tokens."""

import random
from collections.abc import Sequence
from typing import Protocol

WORDS = (
    "the of and to in is you that it he was for on are as with his they at be this have from or one had by word but "
    "not what all were we when your can said there use an each which she do how their if will up other about out many "
    "then them these so some her would make like him into time has look two more write go see number no way could "
    "people my than first water been call who oil its now find long down day did get come made may part over new sound "
    "take only little work know place year live me back give most very after thing our just name good sentence man "
    "think say great where help through much before line right too mean old any same tell boy follow came want show"
).split()


class Tokenizer(Protocol):
    def encode(self, text: str, /) -> list[int]: ...


def random_text(tokenizer: Tokenizer, tokens: int, rng: random.Random) -> str:
    """So many tokens, neither more nor fewer, however the text is read."""
    text = rng.choice(WORDS)
    while (length := len(tokenizer.encode(text))) < tokens:
        text += "".join(f" {rng.choice(WORDS)}" for _ in range(max(1, (tokens - length) // 2)))
    while len(tokenizer.encode(text)) > tokens:
        text = text.rpartition(" ")[0]
    return text if len(tokenizer.encode(text)) == tokens else random_text(tokenizer, tokens, rng)


def random_texts(tokenizer: Tokenizer, lengths: Sequence[int], seed: int) -> list[str]:
    rng = random.Random(seed)
    return [random_text(tokenizer, length, rng) for length in lengths]
