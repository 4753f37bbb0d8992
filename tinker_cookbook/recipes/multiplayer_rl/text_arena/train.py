"""A model learns a game for two by playing itself, or others.

python -m tinker_cookbook.recipes.multiplayer_rl.text_arena.train                    # tic-tac-toe, the tiny model
python -m tinker_cookbook.recipes.multiplayer_rl.text_arena.train opponents=league save_every=5
python -m tinker_cookbook.recipes.multiplayer_rl.text_arena.train game=Nim-v0 model_name=Qwen/Qwen3-8B max_tokens=64
"""

import sys

import chz

from tinker_cookbook.command_line import run_command
from tinker_cookbook.recipes.launch import TINY_MODEL
from tinker_cookbook.recipes.multiplayer_rl.launch import GamesCLIConfig, common_settings, games_config
from tinker_cookbook.recipes.multiplayer_rl.opponents import NAMES, SELF_PLAY
from tinker_cookbook.recipes.multiplayer_rl.text_arena.env import TICTACTOE, TwoPlayerDatasetBuilder
from tinker_cookbook.recipes.rl_launch import renderer_for, run_training
from tinker_cookbook.rl import train


@chz.chz
class CLIConfig(GamesCLIConfig):
    game: str = chz.field(default=TICTACTOE, doc="tictactoe, or the id of a game of TextArena: Nim-v0")
    with_history: bool = chz.field(
        default=False, doc="tictactoe: a player reads the whole game, and not just the board as it is"
    )
    list_moves: bool = chz.field(default=False, doc="tictactoe: the free cells are listed below the board")
    random_plies: int = chz.field(
        default=4,
        doc="tictactoe: most moves drawn by lot before a game of training, the same in all of a group",
    )
    opponents: tuple[str, ...] = chz.field(default=(SELF_PLAY,), doc=f"Each one of: {NAMES}")
    test_opponents: tuple[str, ...] = chz.field(
        default=("random", "optimal"), doc="Who is played against in tests; optimal is for tic-tac-toe"
    )
    illegal_move_reward: float = chz.field(
        default=-2.0, doc="Of the player who makes one, which ends the game"
    )


def build_config(cli: CLIConfig) -> train.Config:
    renderer_name = renderer_for(cli, short_replies=True)
    max_tokens = cli.max_tokens or (16 if cli.model_name == TINY_MODEL else 64)
    builder = TwoPlayerDatasetBuilder(
        **common_settings(cli, renderer_name, max_tokens),
        game=cli.game,
        with_history=cli.with_history,
        list_moves=cli.list_moves,
        random_plies=cli.random_plies,
        opponents=cli.opponents,
        test_opponents=cli.test_opponents,
        illegal_move_reward=cli.illegal_move_reward,
    )
    return games_config(cli, builder, "text_arena", cli.game)


def cli_main(cli_config: CLIConfig) -> None:
    run_training(cli_config, build_config(cli_config))


if __name__ == "__main__":
    sys.exit(run_command(lambda: cli_main(chz.entrypoint(CLIConfig))))
