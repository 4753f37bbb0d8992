"""Services that show metrics: Weights & Biases, Neptune, Trackio. Their packages are imported when one is made."""

import importlib
import math
import numbers
import os
from pathlib import Path
from typing import Any

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.utils.config_dump import dump_config, flattened
from tinker_cookbook.utils.loggers.base import Logger
from tinker_cookbook.utils.misc_utils import local_folder

NEPTUNE_CLOSE_SECONDS = 60.0
"""By default it waits for its server for ever; what is left then is on disk."""


class WandbLogger(Logger):
    """Metrics to Weights & Biases."""

    def __init__(
        self,
        project: str | None = None,
        config: Any | None = None,
        log_dir: str | Path | None = None,
        wandb_name: str | None = None,
    ):
        wandb = _imported("wandb", "wandb")
        self._run = wandb.init(
            project=project,
            name=wandb_name,
            config=None if config is None else dump_config(config),
            dir=_existing_folder(log_dir),
        )

    def log_hparams(self, config: Any) -> None:
        self._run.config.update(dump_config(config), allow_val_change=True)

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self._run.log(_python_numbers(metrics), step=step)

    def close(self) -> None:
        self._run.finish()

    def get_logger_url(self) -> str | None:
        return self._run.url


class NeptuneLogger(Logger):
    """Metrics to Neptune."""

    def __init__(
        self,
        project: str | None = None,
        config: Any | None = None,
        log_dir: str | Path | None = None,
        neptune_name: str | None = None,
    ):
        neptune = _imported("neptune_scale", "neptune-scale")
        self._run = neptune.Run(
            project=project, experiment_name=neptune_name, log_directory=_existing_folder(log_dir)
        )
        self._next_step: float = 0
        if config is not None:
            self.log_hparams(config)

    def log_hparams(self, config: Any) -> None:
        self._run.log_configs(flattened(dump_config(config), "parameters"), cast_unsupported=True)

    def log_metrics(self, metrics: dict[str, Any], step: float | int | None = None) -> None:
        """Neptune takes finite numbers only, and needs a step."""
        step = self._next_step if step is None else step
        self._next_step = max(self._next_step, step + 1)
        finite = {
            key: float(value) for key, value in _python_numbers(metrics).items() if _is_finite_number(value)
        }
        self._run.log_metrics(data=finite, step=step)

    def close(self) -> None:
        self._run.close(timeout=NEPTUNE_CLOSE_SECONDS)

    def get_logger_url(self) -> str | None:
        return self._run.get_run_url() if os.environ.get("NEPTUNE_API_TOKEN") else None


class TrackioLogger(Logger):
    """Metrics to Trackio."""

    def __init__(
        self,
        project: str | None = None,
        config: Any | None = None,
        log_dir: str | Path | None = None,
        trackio_name: str | None = None,
    ):
        """Trackio keeps its data in a folder of its own (TRACKIO_DIR): `log_dir` is not used."""
        trackio = _imported("trackio", "trackio")
        self._run = trackio.init(
            project=project or "tinker-cookbook",
            name=trackio_name,
            config=None if config is None else _without_outer_underscores(dump_config(config)),
        )

    def log_hparams(self, config: Any) -> None:
        """Before the first metrics, with which Trackio sends it."""
        self._run.config.update(_without_outer_underscores(dump_config(config)))

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self._run.log(_python_numbers(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


def _without_outer_underscores(config: dict[str, Any]) -> dict[str, Any]:
    """Trackio keeps names that start with one, such as `__class__`, for itself."""
    return {key.strip("_"): value for key, value in config.items()}


def _python_numbers(metrics: dict[str, Any]) -> dict[str, Any]:
    """Scalars of numpy and torch as Python's; anything else, such as an image of W&B, as it is."""
    return {
        key: value.item() if getattr(value, "ndim", None) == 0 else value for key, value in metrics.items()
    }


def _is_finite_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and math.isfinite(value)


def _existing_folder(log_dir: str | Path | None) -> str | None:
    """A folder for the package's own files, if the run has one on this machine."""
    folder = None if log_dir is None else local_folder(log_dir)
    if folder is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)


def _imported(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(f"{package} is not installed: pip install {package}") from error
