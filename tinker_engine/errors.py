"""Everything the engine can refuse, in one vocabulary.

Raised where the fact is known; a server maps `InputError` and `ModelError` to the
caller's fault and everything else to its own.
"""


class EngineError(Exception):
    """Base of all errors the engine raises on purpose."""


class InputError(EngineError, ValueError):
    """A request that cannot be carried out as written. Nothing was changed.

    `field` names the part of the request that has to change.
    """

    def __init__(self, field: str, message: str):
        super().__init__(f"{field}: {message}")
        self.field = field


class ModelError(EngineError):
    """A model or adapter that is unsupported, incomplete or damaged on disk."""


class DownloadError(EngineError):
    """A model that could not be fetched whole. Nothing was installed."""


class NonFiniteError(EngineError):
    """A computation produced NaN or infinity. The adapter and its optimizer are as before."""


class MemoryLimitError(EngineError):
    """A request that would need more memory than there is. Nothing was computed."""


class StorageError(EngineError):
    """The disk or the database refused. What was there before is whole."""


class DamagedError(EngineError):
    """A checkpoint on disk that is not what was written."""


class WorkerLostError(EngineError):
    """The compute process died; what it held in memory is gone."""


class NotFoundError(EngineError):
    """Something that is not there, or that this caller may not see."""


class BusyError(EngineError):
    """Too much is waiting already. Worth trying again after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float):
        super().__init__(message)
        self.retry_after = retry_after


class AccessError(EngineError):
    """A caller without a key, or with one that is not known."""


class LockedError(EngineError):
    """A data directory that another engine is using."""


class UnsupportedError(EngineError):
    """Something that this engine does not do at all."""
