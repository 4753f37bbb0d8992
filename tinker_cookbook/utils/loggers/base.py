"""What every logger can do."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinker_cookbook.stores import TrainingRunStore


class Logger(ABC):
    """Takes the config once and metrics at every step."""

    essential = False
    """Whether a run must end when this logger fails; otherwise it goes on without it (see `MultiplexLogger`)."""

    @abstractmethod
    def log_hparams(self, config: Any) -> None: ...

    @abstractmethod
    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None: ...

    def log_long_text(self, key: str, text: str) -> None:  # noqa: B027 - most have no place for text
        """Text that is no metric: a sample, a table. Loggers without a place for it leave it out."""

    def close(self) -> None:  # noqa: B027
        """Write out what is pending. Nothing may be logged afterwards."""

    def sync(self) -> None:  # noqa: B027
        """Write out what is pending, and go on."""

    def get_logger_url(self) -> str | None:
        """Where the run can be looked at."""
        return None

    @property
    def store(self) -> "TrainingRunStore | None":
        """The files of the run, if this logger writes them."""
        return None
