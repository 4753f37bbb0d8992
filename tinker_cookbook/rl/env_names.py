"""Environments by the name that a command line has for them."""

import inspect
from collections.abc import Mapping
from typing import Any

import chz

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.rl.task_env import TaskRLDatasetBuilder
from tinker_cookbook.rl.types import RLDatasetBuilder
from tinker_cookbook.tasks import TASKS
from tinker_cookbook.utils.misc_utils import lookup_func


def dataset_builder_by_name(env: str, settings: Mapping[str, Any]) -> RLDatasetBuilder:
    """By the name of a task, or by `module:Builder`. A builder is given those settings that it has fields for."""
    if env in TASKS:
        return TaskRLDatasetBuilder(task=env, **_of_fields(TaskRLDatasetBuilder, settings))
    if ":" not in env:
        raise ConfigurationError(
            f"there is no env {env!r}; give module:Builder, with a builder of your own, or one of {', '.join(TASKS)}"
        )
    builder = _imported(env)
    if not (inspect.isclass(builder) and chz.is_chz(builder) and issubclass(builder, RLDatasetBuilder)):
        raise ConfigurationError(
            f"{env} is no RLDatasetBuilder: derive it from that and put @chz.chz before it"
        )
    try:
        return builder(**_of_fields(builder, settings))
    except TypeError as error:
        raise ConfigurationError(f"{env} needs more than the command line gives it: {error}") from error


def _imported(env: str) -> Any:
    try:
        return lookup_func(env)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"env={env}: {error}; is it on PYTHONPATH, or in the folder you are in?"
        ) from error
    except AttributeError as error:
        raise ConfigurationError(f"env={env}: {error}") from error


def _of_fields(builder: type[RLDatasetBuilder], settings: Mapping[str, Any]) -> dict[str, Any]:
    fields = chz.chz_fields(builder)
    return {name: value for name, value in settings.items() if name in fields}
