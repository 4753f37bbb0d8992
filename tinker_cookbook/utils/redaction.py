"""Which named values are secrets, and a text without them: config.json and logs.log are files that people share."""

import numbers
import re
from collections.abc import Sequence
from typing import Any

MASK = "***"

_SECRET_WORDS = set(
    "apikey auth authorization cookie cookies credential credentials passphrase passwd password secret secrets".split()
)
_KEY_OWNERS = {"access", "account", "api", "encryption", "private", "signing"}
_TOKENS_OF_TEXT = set(
    "audio begin bos by cls each end eos first image last mask new next pad per sep single special start stop text "
    "think unk video".split()
)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_URL_PASSWORD = re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)")


def is_secret(name: str, value: Any) -> bool:
    """Whether a value of this name must not be written. Language models have many tokens that are no secret."""
    if value is None or isinstance(value, numbers.Number) or (isinstance(value, str | bytes) and not value):
        return False
    words = [word.lower() for word in _WORD.findall(name)]
    if _SECRET_WORDS.intersection(words):
        return True
    pairs = list(zip(["", *words], words, strict=False))
    if any(owner in _KEY_OWNERS and word in ("key", "keys") for owner, word in pairs):
        return True
    names_a_token = any(word == "token" and owner not in _TOKENS_OF_TEXT for owner, word in pairs[-1:])
    return names_a_token and isinstance(value, str | bytes)


def mask_text(text: str) -> str:
    """A URL with a password in it, without both user and password."""
    return _URL_PASSWORD.sub(MASK, text) if "://" in text else text


def mask_arguments(arguments: Sequence[str]) -> list[str]:
    """A command line whose `name=value`, `--name=value` and `--name value` hold no secrets."""
    masked: list[str] = []
    follows_secret = False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if follows_secret:
            masked.append(MASK)
        elif equals and is_secret(_last_part(name), value):
            masked.append(f"{name}={MASK}")
        else:
            masked.append(mask_text(argument))
        follows_secret = not equals and name.startswith("--") and is_secret(_last_part(name), "any")
    return masked


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]
