"""What an engine is started with."""

from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import URL


@dataclass(frozen=True)
class Limits:
    """What one request may be, and how much may wait."""

    body_bytes: int = 1 << 30
    queued_requests: int = 16384  # of one key
    queued_bytes: int = 2 << 30
    poll_seconds: float = 25.0  # how long a client is kept waiting for an answer before it must ask again
    run_bytes: int | None = None  # of runs in the compute process's memory; None: a fifth of what is free
    ephemeral_bytes: int = 10 << 30  # of unnamed snapshots on disk
    ephemeral_seconds: float = (
        600.0  # for which an unnamed snapshot is kept after its last use, whatever its size
    )
    answer_seconds: float = 6 * 3600.0  # for which answers to training requests stay readable
    sample_seconds: float = 900.0  # for which samples do


@dataclass(frozen=True)
class Settings:
    data: Path
    models: dict[str, Path]  # what may be trained and sampled, the default first
    keys: dict[str, str]  # owner by key
    database: str | None = None  # URL; None: a SQLite file in the data directory
    durable: bool = False  # survive the end of power, not just of the process
    hub: str = "https://huggingface.co"  # where clients are sent for files of models that are not here
    compiled_client: bool = True  # the SDK may use its compiled HTTP client, the faster one
    limits: Limits = field(default_factory=Limits)

    @property
    def database_url(self) -> str | URL:
        """A file's name is no part of a URL's text: it may have a question mark in it."""
        return self.database or URL.create("sqlite", database=str(self.data / "engine.db"))
