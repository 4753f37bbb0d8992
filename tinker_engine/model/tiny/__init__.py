"""The small chat model that comes with the engine; README.md is its model card."""

from pathlib import Path

NAME = "tinker-engine/tiny-chat"
FOLDER = Path(__file__).parent
