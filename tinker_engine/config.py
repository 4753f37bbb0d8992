"""Where the engine keeps its files."""

import os
from pathlib import Path

import platformdirs


def home() -> Path:
    """`TINKER_ENGINE_HOME`, else the user's cache directory for this program."""
    configured = os.environ.get("TINKER_ENGINE_HOME")
    return Path(configured).expanduser() if configured else Path(platformdirs.user_cache_dir("tinker-engine"))


def models_dir() -> Path:
    return home() / "models"


def data_dir() -> Path:
    """Journal, checkpoints and log of the engine that starts when nobody names another directory."""
    return home() / "data"
