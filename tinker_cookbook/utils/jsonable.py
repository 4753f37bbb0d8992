"""Any value as JSON that every parser reads."""

import math
from collections.abc import Mapping
from typing import Any


def to_jsonable(value: Any) -> Any:
    """Numbers that JSON lacks become null, numpy scalars plain ones, unknown objects their text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_jsonable(item) for item in value]
    if callable(getattr(value, "tolist", None)):  # arrays and scalars of numpy and torch
        return to_jsonable(value.tolist())
    return text_of(value)


def text_of(value: Any) -> str:
    """What the object says of itself; its class if even that fails, since a report must not end a run."""
    try:
        return str(value)
    except Exception as error:
        return f"<{type(value).__name__}: {type(error).__name__} in its __str__>"
