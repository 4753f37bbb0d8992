"""What the files of a model on this machine say about it: where they are, its config, its chat template.

The engine knows where it keeps its models. It is asked if it is installed, and nothing here needs it to be.
"""

import json
from pathlib import Path
from typing import Any

from tinker_cookbook.exceptions import ConfigurationError


def without_variant(model_name: str) -> str:
    """`Qwen/Qwen3-8B:peft:131072` is `Qwen/Qwen3-8B` with other limits; a folder may have a colon in its name."""
    return model_name if Path(model_name).expanduser().is_dir() else model_name.split(":")[0]


def find_folder(model_name: str) -> Path | None:
    """The folder of a model that is on this machine. Never touches the network."""
    name = without_variant(model_name)
    if (folder := _engine_folder(name)) is not None:
        return folder
    path = Path(name).expanduser()
    return path.absolute() if path.is_dir() else None


def _engine_folder(name: str) -> Path | None:
    try:
        from tinker_engine.errors import ModelError
        from tinker_engine.model import folders
    except ModuleNotFoundError:
        return None
    try:
        return folders.resolve(name)
    except ModelError:  # not one of the engine's, which says nothing about whether there is such a model
        return None


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json`; empty where there is none, as in a folder that holds a tokenizer alone."""
    return _read_json(folder / "config.json")


def read_chat_template(folder: Path) -> str | None:
    """The template for plain chat: a file of its own, or a field of `tokenizer_config.json`."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = _read_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {entry["name"]: entry["template"] for entry in template}
        return named.get("default")
    return template


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigurationError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"{path} holds a {type(content).__name__}, not settings")
    return content
