"""Compare what a module has with what the data file says it must have. Differences are words, not failures.

What users wrote against the surface must go on working: more parameters with defaults, more fields with defaults and
defaults where there were none are no differences.
"""

import ast
import dataclasses
import inspect
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from types import ModuleType
from typing import Any

import chz
import pydantic
from chz.util import MISSING as CHZ_MISSING

NOTHING = inspect.Parameter.empty

Entry = str | dict[str, Any]


def differences(module: ModuleType, name: str, entry: Entry) -> list[str]:
    if not hasattr(module, name):
        return [f"{name} is missing"]
    found = getattr(module, name)
    if isinstance(entry, dict):
        return [f"{name}: {words}" for words in _of_class(module, found, entry)]
    if "def (" in entry:
        return [f"{name}: {words}" for words in _of_function(module, found, entry)]
    if entry.startswith("= ") and found != (expected := ast.literal_eval(entry[2:])):
        return [f"{name} is {found!r} and not {expected!r}"]
    return []


# --- classes ----------------------------------------------------------------------------------------------


def _of_class(module: ModuleType, found: Any, entry: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(found, type):
        yield "is no class"
        return
    for base in entry["bases"]:
        if not _has_base(found, base):
            yield f"does not derive from {base}"
    if entry["class"] == "dataclass" and not dataclasses.is_dataclass(found):
        yield "is no dataclass"
    if entry["class"] == "chz" and not chz.is_chz(found):
        yield "is no chz class"
    members = entry.get("members", {})
    yield from _of_enum(found, members) if issubclass(found, Enum) else _of_fields(module, found, members)
    for name, method in entry.get("methods", {}).items():
        yield from (f"{name}: {words}" for words in _of_method(module, found, name, method))


def _has_base(found: type, base: str) -> bool:
    if base == "TypedDict":
        return typing.is_typeddict(found)
    return any(parent.__name__ == base for parent in found.__mro__)


def _of_enum(found: type[Enum], members: Mapping[str, str]) -> Iterator[str]:
    for name, value in members.items():
        if name not in found.__members__:
            yield f"has no member {name}"
        elif found[name].value != ast.literal_eval(value):
            yield f"{name} is {found[name].value!r} and not {value}"


def _of_fields(module: ModuleType, found: type, members: Mapping[str, str | None]) -> Iterator[str]:
    fields = _fields(found)
    for name, default in members.items():
        if name not in fields:
            yield f"has no field {name}"
        elif default is not None and not _same_default(module, default, fields[name]):
            yield f"{name} defaults to {fields[name]!r} and not {default}"
    own = [name for name in fields if name in members or not _is_inherited(found, name)]
    if dataclasses.is_dataclass(found) and own[: len(members)] != list(members):
        yield f"has its fields in the order {own}"
    for name, default in fields.items():
        if members and name not in members and default is NOTHING and not _is_inherited(found, name):
            yield f"has a field {name} without default, which nobody passes"


def _is_inherited(found: type, name: str) -> bool:
    """Fields of a parent are checked with the parent."""
    return name not in inspect.get_annotations(found)


def _fields(found: type) -> dict[str, Any]:
    """Fields and defaults, whatever the kind of class; NOTHING where there is no default."""
    if dataclasses.is_dataclass(found):
        return {
            field.name: _made(field.default, field.default_factory, dataclasses.MISSING)
            for field in _init(found)
        }
    if chz.is_chz(found):
        fields = chz.chz_fields(found).values()
        return {
            field.logical_name: _made(field._default, field._default_factory, CHZ_MISSING) for field in fields
        }
    if issubclass(found, pydantic.BaseModel):
        fields = found.model_fields.items()
        return {name: NOTHING if field.is_required() else field.get_default() for name, field in fields}
    if typing.is_typeddict(found):
        return {name: NOTHING if name in found.__required_keys__ else None for name in found.__annotations__}
    hints = {name for parent in found.__mro__ for name in inspect.get_annotations(parent)}
    hints |= {name for parent in found.__mro__ for name in vars(parent) if not name.startswith("_")}
    return {name: getattr(found, name, None) for name in sorted(hints)}


def _init(found: Any) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(found) if field.init]


def _made(default: Any, factory: Any, missing: Any) -> Any:
    if default is not missing:
        return default
    return NOTHING if factory is missing else factory()


def _of_method(module: ModuleType, found: type, name: str, entry: str) -> Iterator[str]:
    static = inspect.getattr_static(found, name, None)
    if static is None and name not in _fields(found):
        yield "is missing"
    elif entry == "property":
        if inspect.isfunction(static):
            yield "is a method and no property"
    elif "classmethod" in entry and not isinstance(static, classmethod):
        yield "is no class method"
    else:
        if "abstractmethod" in entry and name not in getattr(found, "__abstractmethods__", ()):
            yield "is not abstract"
        yield from _of_function(module, getattr(found, name), entry, is_method="classmethod" not in entry)


# --- functions --------------------------------------------------------------------------------------------


def _of_function(module: ModuleType, found: Any, entry: str, is_method: bool = False) -> Iterator[str]:
    if not callable(found):
        yield "cannot be called"
        return
    words, _, signature = entry.partition("def ")
    if inspect.iscoroutinefunction(found) != ("async" in words.split()):
        yield "is no coroutine function" if "async" in words else "is a coroutine function"
    actual = list(inspect.signature(found).parameters.values())[1 if is_method else 0 :]
    expected = _parameters(signature)
    by_name = {parameter.name: parameter for parameter in actual}
    for parameter in expected:
        yield from _of_parameter(module, parameter, by_name.get(parameter.name))
    yield from _of_order(expected, actual)
    for parameter in actual:
        is_new = parameter.name not in {known.name for known in expected}
        if is_new and parameter.default is NOTHING and parameter.kind not in (_STAR, _STARS):
            yield f"the parameter {parameter.name} has no default, and nobody passes it"


_STAR, _STARS = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD


def _of_parameter(
    module: ModuleType, expected: inspect.Parameter, actual: inspect.Parameter | None
) -> Iterator[str]:
    if actual is None:
        yield f"has no parameter {expected.name}"
    elif actual.kind is not expected.kind:
        yield f"the parameter {expected.name} is {actual.kind.description} and not {expected.kind.description}"
    elif expected.default is not NOTHING and not _same_default(module, expected.default, actual.default):
        yield f"the parameter {expected.name} defaults to {actual.default!r} and not {expected.default}"


def _of_order(expected: list[inspect.Parameter], actual: list[inspect.Parameter]) -> Iterator[str]:
    positional = [
        [
            parameter.name
            for parameter in parameters
            if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        ]
        for parameters in (expected, actual)
    ]
    if positional[1][: len(positional[0])] != positional[0]:
        yield f"takes by position {positional[1]} and not {positional[0]}"


def _parameters(signature: str) -> list[inspect.Parameter]:
    """Of a signature such as "(a, *, b=None)". Defaults are kept as source: they may use names of the module."""
    (definition,) = ast.parse(f"def f{signature}: ...").body
    assert isinstance(definition, ast.FunctionDef)
    given = definition.args
    defaults = [None] * (len(given.args) - len(given.defaults)) + given.defaults
    kinds = inspect.Parameter
    parameters = [
        _parameter(arg, kinds.POSITIONAL_OR_KEYWORD, default)
        for arg, default in zip(given.args, defaults, strict=True)
    ]
    if given.vararg:
        parameters.append(_parameter(given.vararg, _STAR, None))
    pairs = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    parameters += [_parameter(arg, kinds.KEYWORD_ONLY, default) for arg, default in pairs]
    if given.kwarg:
        parameters.append(_parameter(given.kwarg, _STARS, None))
    return parameters


def _parameter(arg: ast.arg, kind: Any, default: ast.expr | None) -> inspect.Parameter:
    return inspect.Parameter(arg.arg, kind, default=NOTHING if default is None else ast.unparse(default))


def _same_default(module: ModuleType, source: str, actual: Any) -> bool:
    """A default that cannot be made here, or not be compared, has only to be there."""
    if actual is NOTHING:
        return False
    try:
        expected = eval(source, dict(vars(module)))
    except (NameError, AttributeError):
        return True
    return callable(expected) or expected == actual
