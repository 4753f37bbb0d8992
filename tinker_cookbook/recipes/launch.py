"""What the launch scripts of recipes share: a model to try them on, and settings that follow from others."""

import tempfile
from pathlib import Path

TINY_MODEL = "tinker-engine/tiny-chat"
"""Comes with the engine: nothing to download, and a recipe is through in about a minute."""


def example_path(recipe: str, *parts: object) -> str:
    """Where a recipe writes if nobody says where. The same settings are the same folder, so that they can resume."""
    name = "-".join(str(part).replace("/", "-") for part in parts)
    return str(Path(tempfile.gettempdir()) / "tinker-examples" / recipe / name)


def learning_rate_for(model_name: str, given: float | None) -> float:
    """The one that was given, else the one to begin with for a model of this family and width."""
    if given is not None:
        return given
    from tinker_cookbook.hyperparam_utils import get_lr

    return get_lr(model_name)
