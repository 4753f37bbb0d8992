"""What can be set about the pipeline. The defaults are for the tiny model; another one takes those of `FULL`."""

from collections.abc import Mapping
from typing import Any, Literal

import chz

from tinker_cookbook.cli_utils import LogdirBehavior
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.launch import TINY_MODEL, example_path
from tinker_cookbook.recipes.preference.sources import TINY
from tinker_cookbook.run_config import expand_home

Stage = Literal["sft", "rm", "rl"]

FULL: Mapping[str, Any] = {
    "sft_dataset": "no_robots",
    "comparisons": "hhh",
    "lora_rank": 64,
    "max_length": 16384,
    "batch_size": 256,
    "sft_learning_rate": 2e-4,
    "rm_learning_rate": 3e-4,
    "rl_learning_rate": 1e-5,
    "rl_max_tokens": 1024,
    "rl_group_size": 4,
    "rl_batch_size": 256,
    "rl_max_steps": 100,
    "rl_substeps": 1,
    "eval_size": 256,
    "save_every": 100,
    "eval_every": 20,
}


@chz.chz
class CLIConfig:
    base_model: str = chz.field(default=TINY_MODEL, doc="That all three stages start from")
    short_name: str | None = chz.field(default=None, doc="Of the run; None: the end of the model's name")
    run_sft: bool = chz.field(default=True, doc="Stage 1: fine-tune on conversations")
    run_rm: bool = chz.field(default=True, doc="Stage 2: train a judge on comparisons")
    run_rl: bool = chz.field(default=True, doc="Stage 3: learn what the judge prefers")
    sft_checkpoint: str | None = chz.field(
        default=None, doc="tinker:// path of weights to train on, for run_sft=False; None: those in log_path"
    )
    rm_checkpoint: str | None = chz.field(
        default=None,
        doc="tinker:// path of weights to sample from, for run_rm=False; None: those in log_path",
    )

    sft_dataset: str = chz.field(default=TINY, doc="tiny, no_robots, tulu3, or a file of conversations")
    comparisons: str = chz.field(
        default=TINY, doc="tiny, hhh, helpsteer3, ultrafeedback, arena, or a file of pairs"
    )
    test_size: int = chz.field(default=0, doc="Pairs of a file that are held out, to measure on")
    renderer_name: str | None = chz.field(default=None, doc="None: as the model was taught")
    lora_rank: int = chz.field(default=32, doc="Rank of the adapters")
    max_length: int = chz.field(default=512, doc="Tokens of a conversation or a comparison")
    batch_size: int = chz.field(default=32, doc="Of the first two stages")
    seed: int = chz.field(default=0, doc="Of the small data, of sampling and of the adapters' first weights")

    sft_learning_rate: float = chz.field(default=3e-3, doc="At its peak")
    sft_max_steps: int | None = chz.field(default=None, doc="None: all of the data once")
    rm_learning_rate: float = chz.field(default=3e-3, doc="At its peak")
    rm_max_steps: int | None = chz.field(default=None, doc="None: all of the data once")
    rl_learning_rate: float = chz.field(default=3e-3, doc="At its peak")
    rl_max_steps: int | None = chz.field(default=20, doc="None: all of the prompts once")
    rl_batch_size: int = chz.field(default=8, doc="Prompts in a batch")
    rl_group_size: int = chz.field(default=8, doc="Answers to each prompt, compared four by four")
    rl_max_tokens: int = chz.field(default=48, doc="Most tokens of an answer")
    rl_substeps: int = chz.field(default=2, doc="Optimizer steps of a batch")
    verdict: Literal["says", "logprob"] = chz.field(
        default="says", doc="Reward by the label that the judge says, or by how sure it is of it"
    )
    eval_size: int = chz.field(
        default=94, doc="Held-out comparisons for the judge, and prompts for the win rate"
    )

    eval_every: int = chz.field(default=10, doc="Steps between evaluations; 0: none")
    save_every: int = chz.field(default=20, doc="Steps between checkpoints; 0: the final one alone")
    base_url: str | None = chz.field(
        default=None, doc="Server; None: TINKER_BASE_URL, else one on this machine"
    )
    log_path: str | None = chz.field(default=None, doc="Folder of the stages; None: named after the settings")
    behavior_if_log_dir_exists: LogdirBehavior = chz.field(
        default="ask", doc="With the folder of a stage that is to run: ask, resume, delete or raise"
    )
    wandb_project: str | None = chz.field(default=None, doc="Project to log to, besides the files")
    wandb_name: str | None = chz.field(default=None, doc="Name of the run there, before that of the stage")

    @chz.validate
    def _check(self) -> None:
        if not (self.run_sft or self.run_rm or self.run_rl):
            raise ConfigurationError("nothing is to run: leave one of run_sft, run_rm and run_rl at True")
        for stage, path in (("sft", self.sft_checkpoint), ("rm", self.rm_checkpoint)):
            if path is not None and getattr(self, f"run_{stage}"):
                raise ConfigurationError(
                    f"{stage}_checkpoint={path} is in place of that stage: set run_{stage}=False"
                )
        if self.eval_size < 1:
            raise ConfigurationError(
                f"eval_size={self.eval_size} must be at least 1; eval_every=0 measures nothing"
            )

    @property
    def name(self) -> str:
        return self.short_name or self.base_model.rsplit("/", 1)[-1]

    @property
    def stages(self) -> list[Stage]:
        """Those that are to run."""
        wanted: dict[Stage, bool] = {"sft": self.run_sft, "rm": self.run_rm, "rl": self.run_rl}
        return [stage for stage, is_wanted in wanted.items() if is_wanted]

    def folder(self, stage: Stage) -> str:
        root = expand_home(None, self.log_path or self._usual_folder())
        return f"{root.rstrip('/')}/{stage}"

    def _usual_folder(self) -> str:
        data = (self.sft_dataset, self.comparisons)
        return example_path("rlhf", self.name, *data, f"{self.lora_rank}rank", f"seed{self.seed}")
