"""Which models are on this machine, and in which folders. Free of torch: a process that only asks stays small."""

import hashlib
import re
from pathlib import Path

from tinker_engine import config
from tinker_engine.errors import ModelError
from tinker_engine.model import tiny
from tinker_engine.model.staging import locked, staged

DEFAULT_MODEL = tiny.NAME

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def installed_models() -> list[tuple[str, Path]]:
    """Names and folders: the model that comes with the engine first, then those that were pulled or converted."""
    folders = sorted(path.parent for path in config.models_dir().glob("[!.]*/config.json"))
    pulled = [(folder.name.replace("--", "/", 1), folder) for folder in folders]
    return [(tiny.NAME, tiny.FOLDER), *pulled]


def is_hub_name(name: str) -> bool:
    return _HUB_NAME.fullmatch(name) is not None


def installed_folder(name: str) -> Path:
    """Where `pull` puts the model of this hub name."""
    return config.models_dir() / name.replace("/", "--")


def resolve(name_or_path: str) -> Path:
    """The folder of a model that is on this machine. Never touches the network."""
    if name_or_path == tiny.NAME:
        return tiny.FOLDER
    path = Path(name_or_path).expanduser().absolute()
    if path.suffix == ".gguf" and not path.is_dir():
        return _converted(path)
    if (path / "config.json").is_file():
        return path
    if is_hub_name(name_or_path):
        if (installed := installed_folder(name_or_path) / "config.json").is_file():
            return installed.parent
        if cached := _hub_cache(name_or_path):
            return cached
    if path.is_dir():
        raise ModelError(f"{path} has no config.json: it is not a Hugging Face model folder")
    if is_hub_name(name_or_path):
        raise ModelError(f"{name_or_path} is not on this machine; type: tinker-engine pull {name_or_path}")
    raise ModelError(
        f"there is no model at {name_or_path!r}; give a model folder, a .gguf file, {tiny.NAME}, or a hub "
        "name such as HuggingFaceTB/SmolLM2-135M-Instruct"
    )


def _hub_cache(name: str) -> Path | None:
    """Where other programs of this machine left the model, if they fetched its weights too."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None
    return folder if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")) else None


def _converted(gguf_path: Path) -> Path:
    """Converted at first use. The content names the folder: a file changed in place is a new model."""
    from tinker_engine.model.gguf import convert_into  # brings torch

    if not gguf_path.is_file():
        raise ModelError(f"{gguf_path} does not exist")
    with gguf_path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    stem = re.sub(r"[^\w.-]", "-", gguf_path.stem)
    folder = config.models_dir() / f"gguf--{stem}-{digest[:12]}"
    with locked(folder):
        if not folder.is_dir():
            with staged(folder) as staging:
                convert_into(gguf_path, staging)
    return folder
