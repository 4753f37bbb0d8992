"""A model learns to find a number from hints, alone or in a race.

python -m tinker_cookbook.recipes.multiplayer_rl.guess_number.train                    # the tiny model, alone
python -m tinker_cookbook.recipes.multiplayer_rl.guess_number.train num_players=3 group_size=24
python -m tinker_cookbook.recipes.multiplayer_rl.guess_number.train model_name=Qwen/Qwen3-8B tops=1000 max_guesses=10
"""

import sys

import chz

from tinker_cookbook.command_line import run_command
from tinker_cookbook.recipes.multiplayer_rl.guess_number.env import GuessNumberDatasetBuilder
from tinker_cookbook.recipes.multiplayer_rl.launch import (
    GamesCLIConfig,
    common_settings,
    explains,
    games_config,
)
from tinker_cookbook.recipes.multiplayer_rl.opponents import NAMES, SELF_PLAY
from tinker_cookbook.recipes.rl_launch import renderer_for, run_training
from tinker_cookbook.rl import train
from tinker_cookbook.tasks.guess_number import TOPS


@chz.chz
class CLIConfig(GamesCLIConfig):
    groups_per_batch: int = chz.field(default=8, doc="Groups in a batch")
    n_batches: int = chz.field(default=30, doc="Batches of games")
    num_players: int = chz.field(default=1, doc="1, or more for a race to one number")
    tops: tuple[int, ...] = chz.field(default=TOPS, doc="Numbers are from 1 to one of these")
    max_guesses: int = chz.field(default=6, doc="Of each player")
    opponents: tuple[str, ...] = chz.field(default=(SELF_PLAY,), doc=f"In a race, each one of: {NAMES}")
    test_opponents: tuple[str, ...] = chz.field(default=(SELF_PLAY,), doc="Likewise in tests")
    test_games: int = chz.field(default=200, doc="Games of the test; 0: none")
    illegal_move_reward: float = chz.field(
        default=-1.0, doc="Of a reply that is no guess, which ends the game"
    )


def build_config(cli: CLIConfig) -> train.Config:
    builder = GuessNumberDatasetBuilder(
        **common_settings(cli, renderer_for(cli, short_replies=True), cli.max_tokens or 16),
        num_players=cli.num_players,
        tops=cli.tops,
        max_guesses=cli.max_guesses,
        explain=explains(cli.model_name),
        opponents=cli.opponents,
        test_opponents=cli.test_opponents,
        illegal_move_reward=cli.illegal_move_reward,
    )
    return games_config(cli, builder, "guess_number", f"{cli.num_players}player")


def cli_main(cli_config: CLIConfig) -> None:
    run_training(cli_config, build_config(cli_config))


if __name__ == "__main__":
    sys.exit(run_command(lambda: cli_main(chz.entrypoint(CLIConfig))))
