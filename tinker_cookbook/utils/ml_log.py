"""Logging of a run: its config once, its metrics at every step, to files, console and services.

`setup_logging` puts the loggers together; each kind has a file of its own in `utils/loggers/`.
"""

import importlib.util
import logging
import os
from collections.abc import Callable
from typing import Any

from tinker_cookbook.utils.config_dump import dump_config
from tinker_cookbook.utils.loggers.base import Logger
from tinker_cookbook.utils.loggers.hosted import NeptuneLogger, TrackioLogger, WandbLogger
from tinker_cookbook.utils.loggers.json_file import JsonLogger
from tinker_cookbook.utils.loggers.multiplex import MultiplexLogger
from tinker_cookbook.utils.loggers.pretty import PrettyPrintLogger
from tinker_cookbook.utils.loggers.python_log import configure_logging_module, configure_root
from tinker_cookbook.utils.misc_utils import local_folder

__all__ = [
    "JsonLogger",
    "Logger",
    "MultiplexLogger",
    "NeptuneLogger",
    "PrettyPrintLogger",
    "TrackioLogger",
    "WandbLogger",
    "configure_logging_module",
    "dump_config",
    "setup_logging",
]

logger = logging.getLogger(__name__)


def setup_logging(
    log_dir: str,
    wandb_project: str | None = None,
    wandb_name: str | None = None,
    config: Any | None = None,
    do_configure_logging_module: bool = True,
) -> Logger:
    """The loggers of a run: JSON files in `log_dir` and tables in the log; with a project, the services at hand.

    W&B, Neptune and Trackio are used if their package is installed and, for the first two, a key is in the environment.
    Messages of the `logging` module go to the console and to logs.log in `log_dir`, unless that is in a bucket.
    """
    if do_configure_logging_module:
        folder = local_folder(log_dir)
        configure_root(None if folder is None else folder / "logs.log")
    loggers: list[Logger] = [JsonLogger(log_dir), PrettyPrintLogger()]
    if wandb_project is not None:
        loggers += _services(log_dir, wandb_project, wandb_name)
    together = MultiplexLogger(loggers)
    if config is not None:
        together.log_hparams(config)
    if url := together.get_logger_url():
        logger.info("this run can be watched at %s", url)
    return together


def _services(log_dir: str, project: str, name: str | None) -> list[Logger]:
    found: list[Logger | None] = []
    if _is_ready("wandb", key="WANDB_API_KEY", mode="WANDB_MODE"):
        found.append(_made(lambda: WandbLogger(project, log_dir=log_dir, wandb_name=name)))
    else:
        logger.warning(
            "not logging to W&B: it needs `pip install wandb` and WANDB_API_KEY (or WANDB_MODE=offline)"
        )
    if _is_ready("neptune_scale", key="NEPTUNE_API_TOKEN", mode="NEPTUNE_MODE"):
        found.append(_made(lambda: NeptuneLogger(project, log_dir=log_dir, neptune_name=name)))
    if importlib.util.find_spec("trackio") is not None:
        found.append(_made(lambda: TrackioLogger(project, log_dir=log_dir, trackio_name=name)))
    return [each for each in found if each is not None]


def _is_ready(module: str, key: str, mode: str) -> bool:
    if importlib.util.find_spec(module) is None:
        return False
    return bool(os.environ.get(key)) or os.environ.get(mode) in ("offline", "disabled")


def _made(make: Callable[[], Logger]) -> Logger | None:
    try:
        return make()
    except Exception:  # the boundary: a service that cannot be reached ends no run
        logger.warning("a logging service could not be set up; the run goes on without it", exc_info=True)
        return None
