"""Services that show metrics: Weights & Biases, Neptune, Trackio. Their packages are imported when one is made."""

import importlib
import numbers
from pathlib import Path
from typing import Any

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.utils.config_dump import dump_config
from tinker_cookbook.utils.loggers.base import Logger
from tinker_cookbook.utils.misc_utils import local_folder


class WandbLogger(Logger):
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
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()

    def get_logger_url(self) -> str | None:
        return self._run.url


class NeptuneLogger(Logger):
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
        self._run.log_configs(flattened(dump_config(config), "parameters"))

    def log_metrics(self, metrics: dict[str, Any], step: float | int | None = None) -> None:
        """Neptune takes numbers only, and needs a step."""
        step = self._next_step if step is None else step
        self._next_step = max(self._next_step, step + 1)
        self._run.log_metrics(data=_numbers(metrics), step=step)

    def close(self) -> None:
        self._run.close()

    def get_logger_url(self) -> str | None:
        return self._run.get_run_url()


class TrackioLogger(Logger):
    def __init__(
        self,
        project: str | None = None,
        config: Any | None = None,
        log_dir: str | Path | None = None,
        trackio_name: str | None = None,
    ):
        """Trackio keeps its data in a folder of its own (TRACKIO_DIR): `log_dir` is not used."""
        trackio = _imported("trackio", "trackio")
        as_json = None if config is None else dump_config(config)
        self._run = trackio.init(project=project or "tinker-cookbook", name=trackio_name, config=as_json)

    def log_hparams(self, config: Any) -> None:
        self._run.config.update(dump_config(config))

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


def flattened(value: Any, prefix: str) -> dict[str, Any]:
    """Nested JSON as one level of names with slashes."""
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, list):
        parts = enumerate(value)
    else:
        return {prefix: value}
    return {name: leaf for key, part in parts for name, leaf in flattened(part, f"{prefix}/{key}").items()}


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    scalars = {key: value.item() if hasattr(value, "item") else value for key, value in metrics.items()}
    return {key: float(value) for key, value in scalars.items() if isinstance(value, numbers.Real)}


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
