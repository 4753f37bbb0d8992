"""Post-training of language models over the Tinker API."""

from importlib import metadata

from tinker_cookbook import exceptions
from tinker_cookbook.exceptions import *  # noqa: F403

try:
    __version__ = metadata.version("open-tinker-cookbook")
except metadata.PackageNotFoundError:  # a checkout that was never installed
    __version__ = "0.0.0.dev0+unknown"

__all__ = ["__version__"]
__all__ += exceptions.__all__
