"""Every error the cookbook raises on purpose.

Each keeps a standard parent, so that `except ValueError` and the like go on working, and takes plain arguments, so
that it can be pickled on its way out of a worker process.
"""

__all__ = [
    "AllTrajectoriesFailedError",
    "BenchmarkNotFoundError",
    "CheckpointError",
    "ConfigurationError",
    "DataError",
    "DataFormatError",
    "DataValidationError",
    "EnvError",
    "EvalError",
    "EvalGradingError",
    "EvalTimeoutError",
    "RendererError",
    "SandboxError",
    "TinkerCookbookError",
    "TrainingError",
    "WeightsAdapterError",
    "WeightsDownloadError",
    "WeightsError",
    "WeightsMergeError",
]


class TinkerCookbookError(Exception):
    """The parent of all of them."""


class ConfigurationError(TinkerCookbookError, ValueError):
    """A field, an argument or a combination of them that cannot work."""


class DataError(TinkerCookbookError, ValueError):
    """Something is wrong with the data of a run."""


class DataFormatError(DataError):
    """Data that cannot be read as what it was said to be."""


class DataValidationError(DataError):
    """Data that can be read and must not be used."""


class RendererError(TinkerCookbookError, ValueError):
    """A conversation that a renderer cannot write, or a renderer that does not exist."""


class TrainingError(TinkerCookbookError, RuntimeError):
    """Training cannot go on."""


class CheckpointError(TrainingError):
    """A checkpoint that cannot be saved, found or read."""


class AllTrajectoriesFailedError(TrainingError):
    """No rollout of a group came to an end."""


class EnvError(TrainingError):
    """An environment, or the grader of a group, that gave something which cannot be trained on."""


class WeightsError(TinkerCookbookError):
    """Exporting, merging or publishing weights failed."""


class WeightsDownloadError(WeightsError, RuntimeError):
    """Weights that could not be fetched."""


class WeightsMergeError(WeightsError, ValueError):
    """An adapter that does not fit the model it is merged into."""


class WeightsAdapterError(WeightsError, ValueError):
    """An adapter that cannot be written in the format asked for."""


class SandboxError(TinkerCookbookError, RuntimeError):
    """Code could not be run in its sandbox."""


class EvalError(TinkerCookbookError, RuntimeError):
    """An evaluation failed."""


class EvalTimeoutError(EvalError, TimeoutError):
    """An evaluation took longer than it may."""


class EvalGradingError(EvalError):
    """An answer could not be graded."""


class BenchmarkNotFoundError(EvalError, KeyError):
    """No benchmark has this name."""
