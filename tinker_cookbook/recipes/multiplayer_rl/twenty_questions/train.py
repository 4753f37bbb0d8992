"""A model learns to find a thing by questions that another model, or a table, answers.

python -m tinker_cookbook.recipes.multiplayer_rl.twenty_questions.train                # the tiny model, and the table
python -m tinker_cookbook.recipes.multiplayer_rl.twenty_questions.train answerer=base_model    # it answers itself
python -m tinker_cookbook.recipes.multiplayer_rl.twenty_questions.train model_name=Qwen/Qwen3-8B answerer=base_model \
    opponent_model=Qwen/Qwen3-32B things_file=things.txt
"""

import sys

import chz

from tinker_cookbook.command_line import run_command
from tinker_cookbook.recipes.multiplayer_rl.launch import (
    GamesCLIConfig,
    common_settings,
    explains,
    games_config,
)
from tinker_cookbook.recipes.multiplayer_rl.twenty_questions.env import TwentyQuestionsDatasetBuilder
from tinker_cookbook.recipes.rl_launch import renderer_for, run_training
from tinker_cookbook.rl import train

TABLE = "table"


@chz.chz
class CLIConfig(GamesCLIConfig):
    answerer: str = chz.field(
        default=TABLE, doc="table, base_model (see opponent_model), or the tinker:// path of a checkpoint"
    )
    opponent_temperature: float = chz.field(default=0.0, doc="Of an answerer that is a model")
    things_file: str | None = chz.field(
        default=None, doc="A thing a line; None: the table that comes with it"
    )
    max_turns: int = chz.field(default=20, doc="Questions, the guess among them")
    illegal_move_reward: float = chz.field(default=-1.0, doc="Of a malformed reply, which ends the game")


def build_config(cli: CLIConfig) -> train.Config:
    answerer = ("optimal" if cli.answerer == TABLE else cli.answerer,)
    builder = TwentyQuestionsDatasetBuilder(
        **common_settings(cli, renderer_for(cli, short_replies=True), cli.max_tokens or 20),
        opponents=answerer,
        test_opponents=answerer,
        things_file=cli.things_file,
        max_turns=cli.max_turns,
        explain=explains(cli.model_name),
        illegal_move_reward=cli.illegal_move_reward,
    )
    return games_config(cli, builder, "twenty_questions", cli.answerer.split("/")[-1])


def cli_main(cli_config: CLIConfig) -> None:
    run_training(cli_config, build_config(cli_config))


if __name__ == "__main__":
    sys.exit(run_command(lambda: cli_main(chz.entrypoint(CLIConfig))))
