"""What launch scripts do before they train."""

import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tinker_cookbook.exceptions import ConfigurationError

if TYPE_CHECKING:
    from tinker_cookbook.stores import Storage

__all__ = [
    "LogdirBehavior",
    "check_holds_run_of",
    "check_log_dir",
    "data_name",
    "model_name_from_argv",
    "run_folder",
]

LogdirBehavior = Literal["delete", "resume", "ask", "raise"]

_ARGUMENT = "behavior_if_log_dir_exists"


def model_name_from_argv(argv: Sequence[str], default: str) -> str:
    """For scripts whose defaults depend on the model: the last `model_name=...`, as on the command line it wins."""
    names = [argument.removeprefix("model_name=") for argument in argv if argument.startswith("model_name=")]
    return names[-1] if names else default


def check_log_dir(log_dir: str, behavior_if_exists: LogdirBehavior) -> None:
    """Nothing happens if there is no such directory yet. `log_dir` may be a URI, such as s3://bucket/run."""
    if behavior_if_exists not in ("delete", "resume", "ask", "raise"):
        raise ConfigurationError(f"{_ARGUMENT}={behavior_if_exists}: must be delete, resume, ask or raise")
    local = log_dir.removeprefix("file://")
    directory = _Store(log_dir) if "://" in local else _Folder(local)
    if not directory.exists():
        return
    if behavior_if_exists == "ask":
        behavior_if_exists = _ask(log_dir)
    if behavior_if_exists == "raise":
        raise ConfigurationError(
            f"{log_dir} already exists; pass {_ARGUMENT}=resume to go on with it, {_ARGUMENT}=delete to start afresh, "
            "or another log_path"
        )
    if behavior_if_exists == "delete":
        directory.remove()


def check_holds_run_of(config_class: type, log_path: str) -> None:
    """Refuses a directory with anything but a run of this trainer, which would be mixed up with it, or deleted."""
    from tinker_cookbook.stores.storage import storage_for_reading
    from tinker_cookbook.stores.training_store import TrainingRunStore

    storage = storage_for_reading(log_path)
    names = storage.list_dir("")
    if not set(names) - {"logs.log"}:  # all there is of a run that was ended at once
        return
    config = TrainingRunStore(storage).read_config()
    if config is None:
        raise ConfigurationError(f"{log_path} holds {names[0]} and no run; choose another log_path")
    ours = f"{config_class.__module__}.{config_class.__qualname__}"
    if (found := config.get("__class__")) != ours:
        raise ConfigurationError(f"{log_path} holds a run of another kind ({found}); choose another log_path")


def run_folder(*parts: str) -> str:
    """By the kind of run, its data and its model: the same are the same run, which the same command goes on with."""
    return "runs/" + re.sub(r"[^A-Za-z0-9._]+", "-", "-".join(parts))


def data_name(path: str) -> str:
    """What a file or folder of data is called in the name of its run: my.csv is another run than my.jsonl."""
    return re.sub(r"\.jsonl(\.[a-z0-9]+)?$", "", path.rstrip("/").split("/")[-1])


def _ask(log_dir: str) -> LogdirBehavior:
    if not sys.stdin.isatty():
        raise ConfigurationError(
            f"{log_dir} already exists and nobody can be asked, for the input is no terminal; pass {_ARGUMENT}=resume, "
            f"{_ARGUMENT}=delete or another log_path"
        )
    while True:
        answer = input(f"{log_dir} already exists. What now? [delete, resume, exit]: ").strip().lower()
        if answer == "delete":
            return "delete"
        if answer == "resume":
            return "resume"
        if answer == "exit":
            sys.exit(0)
        print("Type delete, resume or exit.")


class _Folder:
    def __init__(self, path: str):
        self._path = Path(path).expanduser()

    def exists(self) -> bool:
        return self._path.exists()

    def remove(self) -> None:
        shutil.rmtree(self._path)


class _Store:
    """A directory of an object store exists when something is in it."""

    def __init__(self, uri: str):
        from tinker_cookbook.stores import storage_from_uri

        self._storage: Storage = storage_from_uri(uri)

    def exists(self) -> bool:
        return bool(self._storage.list_dir(""))

    def remove(self) -> None:
        self._storage.remove_dir("")
