"""Data sets of Hugging Face, by name or as `datasets` saved them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinker_cookbook.exceptions import ConfigurationError, DataFormatError
from tinker_cookbook.supervised.rows.source import Row, Rows

if TYPE_CHECKING:
    import datasets  # pyright: ignore[reportMissingImports]


class HubRows(Rows):
    """A `datasets.Dataset`, which keeps its rows on disk."""

    def __init__(self, name: str, dataset: "datasets.Dataset"):
        self.name = name
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Row:
        return self._dataset[index]

    def where(self, index: int) -> str:
        return f"{self.name}, row {index}"


def load_from_hub(path: str, subset: str | None, split: str) -> HubRows:
    """From the hub, or from the local cache when there is no network."""
    datasets = _datasets(f"there is no file or folder {path}; if it is a data set of Hugging Face")
    try:
        dataset = datasets.load_dataset(path, subset, split=split)
    except (OSError, ValueError, RuntimeError) as error:  # also its own errors, which derive from these
        raise DataFormatError(
            f"there is no file or folder {path}, and no data set of that name could be loaded: {_first_line(error)}"
        ) from error
    return HubRows(f"{path} ({split})", dataset)


def is_saved_dataset(folder: Path) -> bool:
    """Whether `Dataset.save_to_disk` wrote it."""
    return (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file()


def load_saved(folder: Path, split: str) -> HubRows:
    datasets = _datasets(f"{folder} was saved by `datasets`; to read it")
    saved = datasets.load_from_disk(str(folder))
    if isinstance(saved, dict):
        if split not in saved:
            raise ConfigurationError(f"{folder} has no split {split!r}; it has {', '.join(map(str, saved))}")
        saved = saved[split]
    return HubRows(str(folder), saved)


def _datasets(why: str) -> Any:
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigurationError(f"{why}, type: pip install datasets") from error
    return datasets


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__
