"""Learning from preferences in three stages: fine-tuning, a judge of answers, reinforcement learning on the judge.

python -m tinker_cookbook.recipes.preference.rlhf.rlhf_pipeline                            # the tiny model, no download
python -m tinker_cookbook.recipes.preference.rlhf.rlhf_pipeline run_sft=False run_rm=False      # the last stage alone
python -m tinker_cookbook.recipes.preference.rlhf.rlhf_pipeline base_model=Qwen/Qwen3.5-9B-Base   # no_robots and HHH

The stages are runs in the folders sft, rm and rl of log_path. The result of a stage that is left out is taken from
there, or from sft_checkpoint and rm_checkpoint.
"""

import asyncio
import sys
from collections.abc import Sequence

import chz
from chz.blueprint import exit_on_entrypoint_error

from tinker_cookbook.checkpoint_utils import CheckpointRecord, load_checkpoints_file
from tinker_cookbook.cli_utils import check_log_dir
from tinker_cookbook.command_line import run_command
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.launch import TINY_MODEL
from tinker_cookbook.recipes.preference.report import change
from tinker_cookbook.recipes.preference.rlhf.settings import FULL, CLIConfig, Stage
from tinker_cookbook.recipes.preference.rlhf.stages import rl_config, rm_config, sft_config
from tinker_cookbook.recipes.preference.sources import TINY
from tinker_cookbook.rl import train as rl_train
from tinker_cookbook.stores.storage import storage_for_reading
from tinker_cookbook.stores.training_store import TrainingRunStore
from tinker_cookbook.supervised import train as supervised_train


async def main(cli: CLIConfig) -> list[str]:
    """What the stages that were run have changed, a line for each figure."""
    if cli.run_rl:  # what is missing for the last stage is to be known before the first one trains
        _ = [checkpoint_of(cli, stage) for stage in ("sft", "rm") if stage not in cli.stages]
    said: list[str] = []
    if cli.run_sft:
        await supervised_train.main(sft_config(cli))
        said.append(f"fine-tuning: {change(cli.folder('sft'), 'test/nll', '.3f')}")
    if cli.run_rm:
        await supervised_train.main(rm_config(cli))
        said.append(f"judge: {change(cli.folder('rm'), 'judge/accuracy')}")
    if cli.run_rl:
        config = rl_config(cli, sft_path=checkpoint_of(cli, "sft"), rm_path=checkpoint_of(cli, "rm"))
        check_same_start(config)
        await rl_train.main(config)
        judges = ("judge", "rule") if cli.comparisons == TINY else ("judge",)
        said += [
            f"against the fine-tuned model: {change(config.log_path, f'{by}/win_rate')}" for by in judges
        ]
    return said


# --- what one stage takes from another --------------------------------------------------------------------


def checkpoint_of(cli: CLIConfig, stage: Stage) -> str:
    """Of sft the weights to train on, of rm those to sample from."""
    if (given := cli.sft_checkpoint if stage == "sft" else cli.rm_checkpoint) is not None:
        return given
    final = _final_record(cli.folder(stage))
    path = None if final is None else final.state_path if stage == "sft" else final.sampler_path
    if path is None:
        raise ConfigurationError(
            f"{cli.folder(stage)} has no finished stage: set run_{stage}=True, with behavior_if_log_dir_exists=resume "
            f"if it was begun, or {stage}_checkpoint=tinker://..., or the log_path of an earlier run"
        )
    return path


def _final_record(folder: str) -> CheckpointRecord | None:
    return next((record for record in reversed(load_checkpoints_file(folder)) if record.final), None)


def check_same_start(config: rl_train.Config) -> None:
    """A run that goes on with another start or another judge than it began with would be of neither."""
    before = TrainingRunStore(storage_for_reading(config.log_path)).read_config()
    if before is None or not load_checkpoints_file(config.log_path):
        return
    began = before.get("load_checkpoint_path")
    if began != config.load_checkpoint_path:
        raise ConfigurationError(
            f"{config.log_path} was begun from {began}, and is now to start from {config.load_checkpoint_path}: pass "
            f"run_sft=False sft_checkpoint={began} to go on with it, or run_sft=False run_rm=False "
            "behavior_if_log_dir_exists=delete to begin this stage again"
        )


# --- the command ------------------------------------------------------------------------------------------


def cli_main(cli_config: CLIConfig) -> None:
    for stage in cli_config.stages:
        check_log_dir(cli_config.folder(stage), cli_config.behavior_if_log_dir_exists)
    for line in asyncio.run(main(cli_config)):
        print(line)


def blueprint_for(base_model: str = TINY_MODEL) -> chz.Blueprint[CLIConfig]:
    """What the command line does not say depends on the model."""
    usual = {} if base_model == TINY_MODEL else FULL
    return chz.Blueprint(CLIConfig).apply({"base_model": base_model, **usual})


@exit_on_entrypoint_error  # of the command line: what is wrong with it, in place of a traceback
def main_from_argv(argv: Sequence[str]) -> None:
    named = [word.removeprefix("base_model=") for word in argv if word.startswith("base_model=")]
    cli_main(blueprint_for(*named[-1:]).make_from_argv(list(argv)))


if __name__ == "__main__":
    sys.exit(run_command(lambda: main_from_argv(sys.argv[1:])))
