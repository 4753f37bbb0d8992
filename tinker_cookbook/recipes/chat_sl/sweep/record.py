"""What a sweep writes down about each of its runs, in the run's folder."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tinker_cookbook.exceptions import DataFormatError
from tinker_cookbook.utils.atomic_file import write_text_atomically
from tinker_cookbook.utils.config_dump import dump_config

RECORD = "sweep_run.json"
Status = Literal["running", "done", "failed"]


@dataclass(frozen=True)
class RunRecord:
    """A run that is still "running" when nobody runs it was stopped in the middle."""

    name: str
    point: dict[str, Any]
    main: Any  # what was called
    config: dict[str, Any]  # with what, but for the folder
    status: Status = "running"
    seconds: float = 0.0
    error: str | None = None

    @classmethod
    def new(cls, name: str, point: dict[str, Any], main: Any, config: Any) -> "RunRecord":
        settings = {key: value for key, value in _as_read(config).items() if key != "log_path"}
        return cls(name, _as_read(point), _as_read(main), settings)

    def is_same_call(self, other: "RunRecord") -> bool:
        return (self.main, self.config) == (other.main, other.config)

    def write(self, folder: Path) -> None:
        write_text_atomically(folder / RECORD, json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> "RunRecord | None":
        path = folder / RECORD
        if not path.is_file():
            return None
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise DataFormatError(
                f"{path} is not a record of a sweep: {error}; delete it to run anew"
            ) from error


def _as_read(value: Any) -> Any:
    """As it will be read from the file, so that the two can be compared."""
    return json.loads(json.dumps(dump_config(value)))
