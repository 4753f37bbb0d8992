"""Reinforcement learning on comparisons: of two answers the shorter one wins.

python -m tinker_cookbook.recipes.preference.shorter.train               # the tiny model, no download
python -m tinker_cookbook.recipes.preference.shorter.train model_name=Qwen/Qwen3.5-4B prompt="Who was Ada Lovelace?" \\
    groups_per_batch=32
"""

import sys

import chz

from tinker_cookbook.command_line import run_command
from tinker_cookbook.recipes.preference.shorter.env import PromptsBuilder, ShorterPreferenceModelBuilder
from tinker_cookbook.recipes.rl_launch import RLCLIConfig, renderer_for, rl_config, run_training
from tinker_cookbook.rl import train
from tinker_cookbook.rl.preference_envs import PairwisePreferenceRLDatasetBuilder


@chz.chz
class CLIConfig(RLCLIConfig):
    group_size: int = chz.field(default=16, doc="Answers to each prompt, compared four by four")
    groups_per_batch: int = chz.field(default=8, doc="Prompts in a batch")
    compute_post_kl: bool = chz.field(default=True, doc="Measure how far each update moves the policy")
    prompt: str | None = chz.field(
        default=None, doc="The same each time; None: people and towns that the tiny model knows"
    )
    n_batches: int = chz.field(default=20, doc="Batches of prompts")


def build_config(cli: CLIConfig) -> train.Config:
    renderer_name = renderer_for(cli, short_replies=cli.max_tokens is None)
    return rl_config(
        cli,
        recipe="shorter",
        data_name="portraits" if cli.prompt is None else "prompt",
        renderer_name=renderer_name,
        max_tokens=cli.max_tokens or 64,
        dataset_builder=PairwisePreferenceRLDatasetBuilder(
            comparison_builder=PromptsBuilder(
                prompt=cli.prompt, size=cli.n_batches * cli.groups_per_batch, seed=cli.seed
            ),
            batch_size=cli.groups_per_batch,
            group_size=cli.group_size,
            policy_renderer_name=renderer_name,
            policy_model_name=cli.model_name,
            preference_model_builder=ShorterPreferenceModelBuilder(),
        ),
    )


def cli_main(cli_config: CLIConfig) -> None:
    run_training(cli_config, build_config(cli_config))


if __name__ == "__main__":
    sys.exit(run_command(lambda: cli_main(chz.entrypoint(CLIConfig))))
