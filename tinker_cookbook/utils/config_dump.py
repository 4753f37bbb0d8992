"""A config as JSON from which a run can be rebuilt: which class, which function, which values.

| what | how it is written |
|---|---|
| an object (chz, dataclass, pydantic, any other) | its fields and `"__class__": "module.QualName"` |
| a function, a class, a method of a class | `"module:qualname"` |
| a lambda or a function inside a function | `"module:outer.<locals>.<lambda>:LINE"` |
| `functools.partial` | `{"__class__": "functools.partial", "func": ..., "args": [...], "keywords": {...}}` |
| a method of an object | `{"__class__": "builtins.method", "func": ..., "self": {...}}` |
| an enum, a path, a set, a number of numpy or torch | its value, a string, a sorted list, a number |
| a value whose name says that it is secret | `"***"` |
"""

import dataclasses
import functools
import logging
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import chz

from tinker_cookbook.utils.jsonable import Converter
from tinker_cookbook.utils.redaction import MASK, is_secret, mask_text

logger = logging.getLogger(__name__)

MAX_OBJECTS = 100_000
MAX_REPR = 1000
"""Ends for a config that reaches half the process; no real one comes near."""


def dump_config(config: Any) -> Any:
    """`config` as the module says; never raises for what a field holds."""
    return _ConfigConverter().convert(config)


class _ConfigConverter(Converter):
    def __init__(self):
        super().__init__()
        self._written = 0

    def convert(self, obj: Any) -> Any:
        plain = super().convert(obj)
        return mask_text(plain) if isinstance(plain, str) else plain

    def item(self, key: Any, value: Any) -> Any:
        return MASK if is_secret(str(key), value) else self.convert(value)

    def compound(self, obj: Any) -> Any:
        self._written += 1
        if self._written > MAX_OBJECTS:
            if self._written == MAX_OBJECTS + 1:
                logger.warning("the config holds more than %d objects; the rest is not written", MAX_OBJECTS)
            return f"<not written: {_class_name(type(obj))}>"
        try:
            return self._named(obj)
        except (
            Exception
        ) as error:  # the boundary to the code of a user's objects: a run does not end over a note on it
            logger.warning("could not write %s into the config", _class_name(type(obj)), exc_info=True)
            return f"<not written: {_class_name(type(obj))}: {type(error).__name__}: {error}>"

    def _named(self, obj: Any) -> Any:
        reference = self._code(obj)
        if reference is not None:
            return reference
        if hasattr(obj, "get_secret_value"):  # pydantic's
            return MASK
        if isinstance(obj, range):  # a sequence that may be long
            return repr(obj)
        if (fields := _fields(obj)) is not None:
            return {
                "__class__": _class_name(type(obj)),
                **{name: self.item(name, value) for name, value in fields},
            }
        return super().compound(obj)

    def _code(self, obj: Any) -> Any:
        """A piece of code: a function, class, method, partial or module; else None."""
        if isinstance(obj, functools.partial):
            return {
                "__class__": "functools.partial",
                "func": self.convert(obj.func),
                "args": self.convert(obj.args),
                "keywords": self.convert(obj.keywords),
            }
        if isinstance(obj, types.MethodType):
            if isinstance(obj.__self__, type):
                return _reference(obj.__func__)
            return {
                "__class__": "builtins.method",
                "func": _reference(obj.__func__),
                "self": self.convert(obj.__self__),
            }
        if isinstance(obj, types.ModuleType):
            return _module_name(obj.__name__)
        if callable(obj) and isinstance(getattr(obj, "__qualname__", None), str):
            return _reference(obj)
        return None

    def other(self, obj: Any) -> Any:
        if hasattr(obj, "__dict__") and type(obj).__repr__ is object.__repr__:
            return {"__class__": _class_name(type(obj))}
        text = repr(obj)
        return text if len(text) <= MAX_REPR else f"{text[:MAX_REPR]}... ({len(text)} characters)"


def _fields(obj: Any) -> Iterable[tuple[str, Any]] | None:
    """The names and values that make up an object; None for what is not written as an object."""
    if callable(getattr(obj, "to_dict", None)):
        as_dict = obj.to_dict()
        return as_dict.items() if isinstance(as_dict, dict) else [("value", as_dict)]
    if chz.is_chz(obj):
        return [(name, getattr(obj, name)) for name in chz.chz_fields(obj)]
    if dataclasses.is_dataclass(obj):
        return [(field.name, getattr(obj, field.name)) for field in dataclasses.fields(obj)]
    if isinstance(obj, tuple) and hasattr(obj, "_fields"):  # a named tuple
        return zip(obj._fields, obj, strict=True)  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(obj, dict | list | tuple | set | frozenset) or hasattr(obj, "tolist"):
        return None
    public = {
        name: value
        for name, value in getattr(obj, "__dict__", {}).items()
        if not name.startswith(("_", "X_"))
    }
    return public.items() or None


def _reference(code: Callable) -> str:
    module = _module_name(getattr(code, "__module__", None) or "builtins")
    reference = f"{module}:{code.__qualname__}"
    inner = getattr(code, "__code__", None)
    if "<" in reference and inner is not None:  # nothing of that name can be imported: say where it stands
        return f"{reference}:{inner.co_firstlineno}"
    return reference


def _class_name(cls: type) -> str:
    return f"{_module_name(cls.__module__)}.{cls.__qualname__}"


def _module_name(name: str) -> str:
    """`python -m package.train` runs as `__main__`, which nobody can import later."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None) if name == "__main__" else None
    return spec.name if spec is not None else name
