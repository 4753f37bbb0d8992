"""A model learns a game for two by playing itself, or others.

python -m tinker_cookbook.recipes.multiplayer_rl.text_arena.train                    # tic-tac-toe, the tiny model
python -m tinker_cookbook.recipes.multiplayer_rl.text_arena.train opponents=league save_every=5
python -m tinker_cookbook.recipes.multiplayer_rl.text_arena.train game=Nim-v0 model_name=Qwen/Qwen3-8B max_tokens=64
"""

import sys

import chz

from tinker_cookbook.command_line import run_command
from tinker_cookbook.recipes.launch import TINY_MODEL, learning_rate_for
from tinker_cookbook.recipes.multiplayer_rl.launch import (
    GamesCLIConfig,
    common_settings,
    explains,
    games_config,
)
from tinker_cookbook.recipes.multiplayer_rl.opponents import NAMES, SELF_PLAY
from tinker_cookbook.recipes.multiplayer_rl.text_arena.env import TICTACTOE, TwoPlayerDatasetBuilder
from tinker_cookbook.recipes.rl_launch import renderer_for, run_training
from tinker_cookbook.rl import train

# Of the usual learning rate. The result of a game says little about a single move, and a policy that settles early
# plays the same games over and over. Set by single short runs.
RATE = 1 / 2


@chz.chz
class CLIConfig(GamesCLIConfig):
    groups_per_batch: int = chz.field(default=32, doc="Groups in a batch")
    group_size: int = chz.field(default=8, doc="Seats of the policy in a group, whose rewards are compared")
    n_batches: int = chz.field(default=40, doc="Batches of games")
    num_substeps: int | None = chz.field(
        default=2, doc="Optimizer steps of a step; None: one for every 64 episodes, 4 at most"
    )
    game: str = chz.field(default=TICTACTOE, doc="tictactoe, or the id of a game of TextArena: Nim-v0")
    with_history: bool = chz.field(
        default=False, doc="tictactoe: a player reads the whole game, and not just the board as it is"
    )
    list_moves: bool = chz.field(default=False, doc="tictactoe: the free cells are listed below the board")
    list_threats: bool = chz.field(
        default=True, doc="tictactoe: the cells are named with which a player would have three in a row"
    )
    random_plies: int = chz.field(
        default=8,
        doc="tictactoe: most moves drawn by lot before a game of training, the same in all of a group",
    )
    learning_rate: float | None = chz.field(
        default=None, doc="At its peak; None: half of what suits the model elsewhere"
    )
    advantage: str = chz.field(
        default="group_mean", doc="group_mean, group_mean_std, rloo, length_normalised or reward"
    )
    test_games: int = chz.field(default=200, doc="Games against each opponent of the test; 0: no test")
    eval_every: int = chz.field(default=20, doc="Steps between evaluations; 0: none")
    opponents: tuple[str, ...] = chz.field(default=(SELF_PLAY,), doc=f"Each one of: {NAMES}")
    test_opponents: tuple[str, ...] = chz.field(
        default=("random", "optimal"), doc="Who is played against in tests; optimal is for tic-tac-toe"
    )
    illegal_move_reward: float = chz.field(
        default=-2.0, doc="Of the player who makes one, which ends the game"
    )
    draw_reward: float | None = chz.field(
        default=None, doc="Of each player; a win is 1 and a loss -1. None: 0.3 in tictactoe, 0 elsewhere"
    )


def build_config(cli: CLIConfig) -> train.Config:
    if cli.learning_rate is None:
        cli = chz.replace(cli, learning_rate=learning_rate_for(cli.model_name, None) * RATE)
    renderer_name = renderer_for(cli, short_replies=True)
    max_tokens = cli.max_tokens or (16 if cli.model_name == TINY_MODEL else 64)
    draw_reward = cli.draw_reward
    if draw_reward is None:
        draw_reward = 0.3 if cli.game == TICTACTOE else 0.0
    builder = TwoPlayerDatasetBuilder(
        **common_settings(cli, renderer_name, max_tokens),
        game=cli.game,
        with_history=cli.with_history,
        list_moves=cli.list_moves,
        list_threats=cli.list_threats,
        explain=explains(cli.model_name),
        random_plies=cli.random_plies,
        opponents=cli.opponents,
        test_opponents=cli.test_opponents,
        illegal_move_reward=cli.illegal_move_reward,
        draw_reward=draw_reward,
    )
    return games_config(cli, builder, "text_arena", cli.game)


def cli_main(cli_config: CLIConfig) -> None:
    run_training(cli_config, build_config(cli_config))


if __name__ == "__main__":
    sys.exit(run_command(lambda: cli_main(chz.entrypoint(CLIConfig))))
