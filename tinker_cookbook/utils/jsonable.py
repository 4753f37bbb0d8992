"""Any value as plain JSON: what a row of metrics, rollouts or checkpoints may hold.

Numbers of numpy and torch become Python's. A float that JSON has no word for is written as the string "NaN",
"Infinity" or "-Infinity": every JSON reader takes the file, `float(value)` gives the number back, pandas does so by
itself for a column that holds them, and a diverged loss stays apart from a missing one, which `null` would hide.
"""

import dataclasses
import datetime
import math
import numbers
from collections.abc import Mapping, Sequence, Set
from enum import Enum
from pathlib import PurePath
from typing import Any

MAX_DEPTH = 100
"""Levels of nesting that are written; far more than data has, and far less than Python's recursion limit."""


def to_jsonable(obj: Any) -> Any:
    """`obj` in dicts, lists, strings, numbers, booleans and None; `json.dumps(..., allow_nan=False)` takes it.

    What is none of these, nor a known container, becomes its `str`. An object inside itself is written as a mark.
    """
    return Converter().convert(obj)


_AS_THEY_ARE = frozenset({type(None), bool, int, str})
_WALKED = frozenset({dict, list, tuple})


class _Absent:
    """No plain value; None is one."""


class Converter:
    """Walks a value; `other` says what becomes of an object that is neither plain nor a container."""

    def __init__(self):
        self._parents: set[int] = set()  # what is being written right now, from the root to here

    def convert(self, obj: Any) -> Any:
        plain = _plain(obj)
        if plain is not _Absent:
            return plain
        if id(obj) in self._parents:
            return f"<cycle: {class_name(type(obj))}>"
        if len(self._parents) >= MAX_DEPTH:
            return f"<nested deeper than {MAX_DEPTH} levels: {class_name(type(obj))}>"
        self._parents.add(id(obj))
        try:
            return self.compound(obj)
        finally:
            self._parents.discard(id(obj))

    def compound(self, obj: Any) -> Any:
        if isinstance(obj, Mapping):
            return {self.key(key): self.item(key, value) for key, value in obj.items()}
        if isinstance(obj, Set):
            return [self.convert(each) for each in _in_order(obj)]
        if isinstance(obj, Sequence):
            return [self.convert(each) for each in obj]
        if hasattr(obj, "dtype") and hasattr(obj, "tolist"):  # an array or a tensor, whatever its library
            return self.convert(obj.tolist())
        return self.other(obj)

    def key(self, key: Any) -> str:
        return str(_plain(key)) if isinstance(key, Enum) else str(key)

    def item(self, key: Any, value: Any) -> Any:
        """The value of one named item; a subclass may judge by the name."""
        return self.convert(value)

    def other(self, obj: Any) -> Any:
        if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
            return {
                field.name: self.item(field.name, getattr(obj, field.name))
                for field in dataclasses.fields(obj)
            }
        model_dump = getattr(obj, "model_dump", None)  # pydantic's
        if model_dump is not None and not isinstance(obj, type):
            return self.convert(model_dump())
        return text_of(obj)


def text_of(value: Any) -> str:
    """What the object says of itself; its class if even that fails, since a report must not end a run."""
    try:
        return str(value)
    except Exception as error:
        return f"<{type(value).__name__}: {type(error).__name__} in its __str__>"


def class_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _plain(obj: Any) -> Any:
    """The JSON value of what needs no walk, else `_Absent`."""
    kind = type(obj)  # first what nearly all values are: the questions further down take their time
    if kind in _AS_THEY_ARE:
        return obj
    if kind is float:
        return _number(obj)
    if kind in _WALKED:
        return _Absent
    if isinstance(obj, Enum):
        value = _plain(obj.value)
        return obj.name if value is _Absent else value
    if isinstance(obj, str):
        return str(obj)
    if isinstance(obj, numbers.Integral):  # numpy registers its scalars with these
        return int(obj)
    if isinstance(obj, numbers.Real):
        return _number(float(obj))
    if isinstance(obj, bytes | bytearray):
        return obj.decode("utf-8", "backslashreplace")
    if isinstance(obj, PurePath):
        return str(obj)
    if isinstance(obj, datetime.date | datetime.time):  # a datetime is a date
        return obj.isoformat()
    return _Absent


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _in_order(values: Set) -> list:
    """Sets have no order of their own, and two writings of one value must not differ."""
    try:
        return sorted(values)
    except TypeError:  # of kinds that cannot be compared
        return sorted(values, key=repr)
