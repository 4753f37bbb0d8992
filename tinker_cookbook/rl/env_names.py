"""Environments by the name that a command line has for them."""

import ast
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import chz

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.rl.types import RLDatasetBuilder
from tinker_cookbook.tasks import TASKS
from tinker_cookbook.utils.misc_utils import lookup_func

_TASK_ENV = "tinker_cookbook.rl.task_env:TaskRLDatasetBuilder"
_ARITHMETIC = "tinker_cookbook.recipes.math_rl.arithmetic_env:ArithmeticDatasetBuilder"
_MATH = "tinker_cookbook.recipes.math_rl.math_env:"
_FILE = "tinker_cookbook.rl.problem_files:ProblemFileBuilder"
_REASONING_GYM = "tinker_cookbook.recipes.reasoning_gym.env:ReasoningGymDatasetBuilder"
_PREFIX = "reasoning_gym/"


@dataclass(frozen=True)
class NamedEnv:
    builder: str  # module:Class, imported when it is asked for
    about: str
    options: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int = 64  # of an action, enough for a good one


def _first_line(text: str | None) -> str:
    return text.strip().splitlines()[0].removesuffix(".") if text else ""


ENVS: dict[str, NamedEnv] = {
    **{
        name: NamedEnv(
            _TASK_ENV, _first_line(task.__doc__ or inspect.getmodule(task).__doc__), {"task": name}
        )
        for name, task in TASKS.items()
    },
    "arithmetic": NamedEnv(
        _TASK_ENV,
        "Sums of numbers up to 30, thinking first",
        {
            "task": "arithmetic",
            "task_options": {"think": 1.0, "one_digit": 0.0, "largest": 30, "operations": "+"},
        },
    ),
    "addition": NamedEnv(_ARITHMETIC, "What is 27 + 15?", max_tokens=16),
    "multiplication": NamedEnv(_ARITHMETIC, "What is 7 * 8?", {"operation": "*", "largest": 9}, 16),
    "gsm8k": NamedEnv(_MATH + "Gsm8kDatasetBuilder", "Word problems of grade school", max_tokens=512),
    "math": NamedEnv(_MATH + "MathDatasetBuilder", "Competition mathematics", max_tokens=1024),
    "polaris": NamedEnv(_MATH + "PolarisDatasetBuilder", "Hard mathematics, 53 K", max_tokens=2048),
    "deepmath": NamedEnv(_MATH + "DeepMathDatasetBuilder", "Hard mathematics, 103 K", max_tokens=2048),
}


def named_env(env: str) -> NamedEnv:
    """What a command line calls `env`: a name, `reasoning_gym/<task>`, `module:Builder`, or a file of problems."""
    if env in ENVS:
        return ENVS[env]
    if env.startswith(_PREFIX):
        return NamedEnv(_REASONING_GYM, "A task of reasoning-gym", {"task": env.removeprefix(_PREFIX)}, 32)
    if Path(env).expanduser().exists():
        return NamedEnv(_FILE, "Questions and answers of a file", {"path": env}, max_tokens=256)
    if ":" not in env:
        raise ConfigurationError(
            f"there is no env {env!r}; give module:Builder with a builder of your own, a file of problems, "
            f"{_PREFIX}<task>, or one of {', '.join(ENVS)}"
        )
    return NamedEnv(env, "Your own", max_tokens=256)


def dataset_builder_by_name(
    env: str, settings: Mapping[str, Any], options: Mapping[str, Any] | None = None
) -> RLDatasetBuilder:
    """A builder is given those `settings` that it has fields for, and all `options`."""
    named = named_env(env)
    builder = _imported(named.builder)
    if not (inspect.isclass(builder) and chz.is_chz(builder) and issubclass(builder, RLDatasetBuilder)):
        raise ConfigurationError(
            f"{env} is no RLDatasetBuilder: derive it from that and put @chz.chz before it"
        )
    fields = chz.chz_fields(builder)
    options = options or {}
    if unknown := sorted(set(options) - set(fields)):
        raise ConfigurationError(f"env {env} has no option {', '.join(unknown)}; it has {', '.join(fields)}")
    given = {name: value for name, value in settings.items() if name in fields}
    try:
        return builder(**{**given, **named.options, **options})
    except TypeError as error:
        raise ConfigurationError(
            f"{env} cannot be made of what the command line gives it: {error}"
        ) from error


def read_options(pairs: Sequence[str]) -> dict[str, Any]:
    """`largest=9` as {"largest": 9}, `task_options.think=1` as {"task_options": {"think": 1}}.

    A value is a Python literal where it is one, and text otherwise.
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator:
            raise ConfigurationError(
                f"{pair!r} is no option: write name=value, or several with commas between"
            )
        *outer, name = name.strip().split(".")
        within = options
        for part in outer:
            within = within.setdefault(part, {})
        within[name] = _literal(value)
    return options


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def describe_envs() -> str:
    """A line each, for `--help`."""
    width = max(map(len, ENVS))
    lines = [f"  {name:{width}}  {named.about}" for name, named in ENVS.items()]
    return "\n".join(
        [
            "Environments (env=...):",
            *lines,
            f"  {_PREFIX + 'TASK':{width}}  any task of the reasoning-gym package (pip install reasoning-gym)",
            f"  {'FILE':{width}}  questions and answers in JSONL, CSV, ...",
            f"  {'module:Builder':{width}}  an RLDatasetBuilder of your own",
        ]
    )


def _imported(path: str) -> Any:
    try:
        return lookup_func(path)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"env={path}: {error}; is it on PYTHONPATH, or in the folder you are in?"
        ) from error
    except AttributeError as error:
        raise ConfigurationError(f"env={path}: {error}") from error
