"""The configuration that every trainer has; each adds its own fields to it."""

from typing import Any

import chz

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.utils.misc_utils import local_folder


def expand_home(_: Any, log_path: str) -> str:
    """`~` is the user's home; a URI such as s3://bucket/run stays as it is."""
    folder = local_folder(log_path)
    return log_path if folder is None else str(folder)


@chz.chz
class RunConfig:
    """Where a run is logged, what it trains, and how often it saves and evaluates."""

    log_path: str = chz.field(munger=expand_home, doc="Folder, or URI of one, for all that the run writes")
    model_name: str = chz.field(doc="Base model, as the server names it")
    recipe_name: str = chz.field(doc="What the run is called in the server's records")
    renderer_name: str | None = chz.field(
        default=None, doc="How conversations are written; None: as the model was taught"
    )
    load_checkpoint_path: str | None = chz.field(
        default=None, doc="tinker:// path of weights to start from, with a fresh optimizer"
    )
    lora_rank: int = chz.field(default=32, doc="Rank of the adapter that is trained")
    seed: int = chz.field(default=0, doc="Of the adapter's first weights")
    base_url: str | None = chz.field(
        default=None, doc="Server of the Tinker API; None: TINKER_BASE_URL, else an engine on this machine"
    )
    max_steps: int | None = chz.field(default=None, doc="Stop after so many steps; None: when the data ends")

    save_every: int = chz.field(default=20, doc="Steps between checkpoints; 0: none but the final one")
    save_every_tokens: int = chz.field(default=0, doc="Tokens between checkpoints; 0: not by tokens")
    save_every_seconds: float = chz.field(default=0.0, doc="Seconds between checkpoints; 0: not by time")
    async_periodic_saves: bool = chz.field(
        default=False, doc="Train on while a checkpoint is written, instead of waiting for it"
    )
    ttl_seconds: int | None = chz.field(
        default=604800, doc="How long the server keeps a checkpoint; None: for ever"
    )
    rolling_save_every: int = chz.field(
        default=0, doc="Steps between rolling checkpoints, of which only the last is kept; 0: none"
    )
    rolling_ttl_seconds: int = chz.field(default=7200, doc="How long the server keeps a rolling checkpoint")
    eval_every: int = chz.field(default=20, doc="Steps between evaluations; 0: none")

    wandb_project: str | None = chz.field(default=None, doc="Project to log to, besides the files")
    wandb_name: str | None = chz.field(default=None, doc="Name of the run there")
    enable_trace: bool = chz.field(default=False, doc="Write trace_events.jsonl, for Perfetto")
    span_chart_every: int = chz.field(default=0, doc="Steps between charts of where the time went; 0: none")

    @chz.validate
    def _check(self) -> None:
        counts = ("save_every", "save_every_tokens", "save_every_seconds", "rolling_save_every", "eval_every")
        for name in (*counts, "span_chart_every"):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{name}={getattr(self, name)} is negative; 0 switches it off")
        if self.lora_rank < 1:
            raise ConfigurationError(f"lora_rank={self.lora_rank} must be at least 1")
        if self.max_steps is not None and self.max_steps < 1:
            raise ConfigurationError(
                f"max_steps={self.max_steps} must be at least 1, or None for all of the data"
            )
