"""What the commands of the games have in common."""

from typing import Any

import chz

from tinker_cookbook.recipes.launch import TINY_MODEL
from tinker_cookbook.recipes.multiplayer_rl.dataset import GamesDatasetBuilder
from tinker_cookbook.recipes.rl_launch import RLCLIConfig, rl_config
from tinker_cookbook.rl import train


@chz.chz
class GamesCLIConfig(RLCLIConfig):
    group_size: int = chz.field(default=16, doc="Seats of the policy in a group, whose rewards are compared")
    groups_per_batch: int = chz.field(default=16, doc="Groups in a batch")
    n_batches: int = chz.field(default=50, doc="Batches of games")
    league_size: int = chz.field(default=8, doc="Last checkpoints of the run that play in a league")
    opponent_model: str | None = chz.field(default=None, doc="What base_model is; None: model_name")
    opponent_renderer_name: str | None = chz.field(default=None, doc="None: as that model was taught")
    opponent_temperature: float = chz.field(default=1.0, doc="Of the sampling of an opponent that is a model")
    test_games: int = chz.field(default=100, doc="Games against each opponent of the test; 0: no test")
    move_seconds: float = chz.field(default=600.0, doc="In which a player must move")


def explains(model_name: str) -> bool:
    """The tiny model was taught these games in words that leave out how a move is written; others must be told."""
    return model_name != TINY_MODEL


def common_settings(cli: GamesCLIConfig, renderer_name: str, max_tokens: int) -> dict[str, Any]:
    """Of a `GamesDatasetBuilder`, from those of the command line."""
    same = "league_size opponent_model opponent_renderer_name opponent_temperature test_games move_seconds"
    return {
        **{name: getattr(cli, name) for name in same.split()},
        "model_name_for_tokenizer": cli.model_name,
        "renderer_name": renderer_name,
        "batch_size": cli.groups_per_batch,
        "group_size": cli.group_size,
        "n_batches": cli.n_batches,
        "seed": cli.seed,
        "max_tokens": max_tokens,
        "base_url": cli.base_url,
    }


def games_config(
    cli: GamesCLIConfig, builder: GamesDatasetBuilder, recipe: str, data_name: str
) -> train.Config:
    config = rl_config(
        cli,
        recipe=recipe,
        data_name=data_name,
        dataset_builder=builder,
        renderer_name=builder.renderer_name,
        max_tokens=builder.max_tokens,
    )
    return chz.replace(config, dataset_builder=chz.replace(builder, log_path=config.log_path))
