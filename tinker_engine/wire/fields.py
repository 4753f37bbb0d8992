"""Typed reads from a JSON object. What has the wrong type is refused by its dotted path.

Two rules that all JSON requests share:

- null is the same as absent: the SDK leaves out what is None and sends every default.
- A field nobody asks for is passed over, as the hosted service does: a newer SDK sends its new defaults to
  every server.

A bool is not a number here and 3.0 is not an integer, though Python and JSON would let both pass.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as short

from tinker_engine.errors import InputError

INT64 = (-(2**63), 2**63 - 1)
MOST_SEED = 2**64 - 1  # callers may use all 64 bits


@dataclass(frozen=True)
class Fields:
    """A JSON object, and where in the request it is ("" for the request itself)."""

    values: Mapping[str, object]
    where: str = ""

    def path(self, name: str) -> str:
        return f"{self.where}.{name}" if self.where else name

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def text(self, name: str, default: str | None = None) -> str:
        """Without a default the field is required; likewise below."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.error(name, f"must be a string, got {_spell(value)}")
        return check_text(value, self.path(name))

    def integer(
        self, name: str, default: int | None = None, *, least: int = INT64[0], most: int = INT64[1]
    ) -> int:
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, f"must be an integer, got {_spell(value)}")
        if value < least:
            raise self.error(name, f"must be at least {least}, got {short(value)}")
        if value > most:
            raise self.error(name, f"must be at most {most}, got {short(value)}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(name, f"must be a number, got {_spell(value)}")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self.error(name, f"must be a finite number, got {short(value)}")
        return number

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"must be true or false, got {_spell(value)}")
        return value

    def items(self, name: str) -> list[object]:
        value = self._get(name, None)
        if not isinstance(value, list):
            raise self.error(name, f"must be a list, got {_spell(value)}")
        return value

    def integers(self, name: str) -> list[int]:
        return check_integers(self.items(name), self.path(name))

    def nested(self, name: str) -> "Fields":
        return Fields(check_object(self._get(name, None), self.path(name)), self.path(name))

    def optional_text(self, name: str) -> str | None:
        return self.text(name) if self.has(name) else None

    def optional_integer(self, name: str, *, least: int = INT64[0], most: int = INT64[1]) -> int | None:
        return self.integer(name, least=least, most=most) if self.has(name) else None

    def optional_nested(self, name: str) -> "Fields | None":
        return self.nested(name) if self.has(name) else None

    def error(self, name: str, message: str) -> InputError:
        return InputError(self.path(name), message)

    def _get(self, name: str, default: object) -> object:
        value = self.values.get(name)
        if value is None:
            value = default
        if value is None:
            raise self.error(name, "is missing")
        return value


def check_object(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise InputError(where, f"must be a JSON object, got {_spell(value)}")
    return value


def check_text(text: str, where: str) -> str:
    """JSON can spell half of a surrogate pair, which no database and no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(where, "is not valid Unicode: it cannot be written as UTF-8") from error
    return text


def check_integers(items: list[object], where: str) -> list[int]:
    """A list of int64. Prompts come this way: whole-list operations only, unless there is something to refuse."""
    if not set(map(type, items)) <= {int}:
        index, item = next((i, item) for i, item in enumerate(items) if type(item) is not int)
        raise InputError(f"{where}[{index}]", f"must be an integer, got {_spell(item)}")
    integers: list[int] = items  # pyright: ignore[reportAssignmentType]
    if integers and not INT64[0] <= min(integers) <= max(integers) <= INT64[1]:
        raise InputError(where, "holds an integer that does not fit in 64 bits")
    return integers


def _spell(value: object) -> str:
    """As JSON would."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else short(value)
