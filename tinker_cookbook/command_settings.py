"""What every command that trains can be told, whatever it trains on."""

from typing import Any

import chz

from tinker_cookbook.checkpoint_utils import resolve_renderer_name_from_checkpoint_or_default
from tinker_cookbook.cli_utils import LogdirBehavior
from tinker_cookbook.utils.lr_scheduling import LRSchedule


@chz.chz
class CommandSettings:
    """A command adds its model and its data, and may have other defaults."""

    renderer_name: str | None = chz.field(
        default=None,
        doc="How conversations are written; None: that of the checkpoint, else as the model was taught",
    )
    load_checkpoint_path: str | None = chz.field(
        default=None, doc="tinker:// path of weights to start from; None: the base model"
    )
    base_url: str | None = chz.field(
        default=None, doc="Server of the Tinker API; None: TINKER_BASE_URL, else an engine on this machine"
    )

    max_steps: int | None = chz.field(default=None, doc="Stop after so many steps; None: when the data ends")
    learning_rate: float | None = chz.field(default=None, doc="At its peak; None: a good one for the model")
    lr_schedule: LRSchedule = chz.field(default="linear", doc="How it falls over the steps")
    warmup_steps: int = chz.field(default=0, doc="Steps over which it rises first")
    grad_clip_norm: float = chz.field(default=0.0, doc="Largest norm of a gradient; 0: not limited")
    weight_decay: float = chz.field(
        default=0.0, doc="Share of the weights taken off at each step, times the learning rate"
    )
    lora_rank: int = chz.field(default=32, doc="Rank of the adapter that is trained")
    seed: int = chz.field(
        default=0, doc="Of the adapter's first weights, of the data, and of what is sampled"
    )

    eval_every: int = chz.field(default=10, doc="Steps between evaluations; 0: none")
    save_every: int = chz.field(default=20, doc="Steps between checkpoints; 0: none but the final one")

    log_path: str | None = chz.field(
        default=None, doc="Folder for all that is written; None: named after the settings"
    )
    behavior_if_log_dir_exists: LogdirBehavior = chz.field(
        default="ask", doc="resume, delete, raise or ask: what to do with a run that is there"
    )
    wandb_project: str | None = chz.field(default=None, doc="Project to log to, besides the files")
    wandb_name: str | None = chz.field(default=None, doc="Name of the run there")


HANDED_ON = tuple(
    "load_checkpoint_path base_url max_steps lr_schedule warmup_steps grad_clip_norm weight_decay lora_rank seed "
    "eval_every save_every wandb_project wandb_name".split()
)


def handed_on(cli: CommandSettings, *more: str) -> dict[str, Any]:
    """The settings that a trainer's config has under the same name, with those that are named."""
    return {name: getattr(cli, name) for name in (*HANDED_ON, *more)}


def renderer_for(cli: CommandSettings, model_name: str) -> str:
    return resolve_renderer_name_from_checkpoint_or_default(
        model_name=model_name,
        explicit_renderer_name=cli.renderer_name,
        load_checkpoint_path=cli.load_checkpoint_path,
        base_url=cli.base_url,
    )
