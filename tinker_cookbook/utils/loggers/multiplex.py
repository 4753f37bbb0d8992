"""Several loggers as one, of which none but the record of the run can stop it."""

import logging
from typing import TYPE_CHECKING, Any

from tinker_cookbook.utils.loggers.base import Logger

if TYPE_CHECKING:
    from tinker_cookbook.stores import TrainingRunStore

logger = logging.getLogger(__name__)

MAX_FAILURES_IN_A_ROW = 3


class MultiplexLogger(Logger):
    """Passes every call on to each of its loggers.

    An essential one (`Logger.essential`: the JSON files) fails the call. Of any other, a failure is a warning, with its
    traceback the first time a method of it fails; a method that failed three times in a row is not called again, but
    `close` always is. The others are called in any case.
    """

    def __init__(self, loggers: list[Logger]):
        self.loggers = loggers
        self.essential = any(each.essential for each in loggers)
        self._guards = [_Guard(each) for each in loggers]

    def log_hparams(self, config: Any) -> None:
        self._each("log_hparams", config)

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self._each("log_metrics", metrics, step=step)

    def log_long_text(self, key: str, text: str) -> None:
        self._each("log_long_text", key, text)

    def sync(self) -> None:
        self._each("sync")

    def close(self) -> None:
        self._each("close")

    def get_logger_url(self) -> str | None:
        urls = (guard.call("get_logger_url") for guard in self._guards)
        return next((url for url in urls if url is not None), None)

    @property
    def store(self) -> "TrainingRunStore | None":
        return next((each.store for each in self.loggers if each.store is not None), None)

    def _each(self, method: str, *args: Any, **kwargs: Any) -> None:
        failures: list[Exception] = []
        for guard in self._guards:
            try:
                guard.call(method, *args, **kwargs)
            except (
                Exception
            ) as error:  # of an essential logger; raised below, when the others have had their call
                failures.append(error)
        for other in failures[1:]:
            logger.error("another logger failed as well", exc_info=other)
        if failures:
            raise failures[0]


class _Guard:
    """One logger, and how often its methods have failed in a row."""

    def __init__(self, guarded: Logger):
        self._logger = guarded
        self._in_a_row: dict[str, int] = {}
        self._lost = 0

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        if self._logger.essential:
            return getattr(self._logger, method)(*args, **kwargs)
        if self._in_a_row.get(method, 0) >= MAX_FAILURES_IN_A_ROW:
            self._lost += 1
            return None
        try:
            result = getattr(self._logger, method)(*args, **kwargs)
        except Exception:  # the boundary: whatever a service or its package does, the run goes on
            self._failed(method)
            result = None
        else:
            self._in_a_row[method] = 0
        if method == "close" and self._lost:
            logger.warning("%s missed %d calls; the JSON files have all of them", self._name, self._lost)
        return result

    def _failed(self, method: str) -> None:
        first = method not in self._in_a_row
        self._in_a_row[method] = self._in_a_row.get(method, 0) + 1
        self._lost += method != "close"
        logger.warning("%s.%s failed; the run goes on without it", self._name, method, exc_info=first)
        if self._in_a_row[method] == MAX_FAILURES_IN_A_ROW:
            logger.warning(
                "%s.%s failed %d times in a row and is not called again",
                self._name,
                method,
                MAX_FAILURES_IN_A_ROW,
            )

    @property
    def _name(self) -> str:
        return type(self._logger).__name__
