"""Everybody plays everybody, in both seats: a table of wins, draws and losses with their 95 % intervals.

python -m tinker_cookbook.recipes.multiplayer_rl.text_arena.tournament players=base_model,random,optimal games=100
python -m tinker_cookbook.recipes.multiplayer_rl.text_arena.tournament players=tinker://.../final,base_model,random
"""

import asyncio
import itertools
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import chz

from tinker_cookbook.command_line import run_command
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.model_info import get_recommended_renderer_name
from tinker_cookbook.recipes.launch import TINY_MODEL
from tinker_cookbook.recipes.multiplayer_rl.game import GameMaker
from tinker_cookbook.recipes.multiplayer_rl.launch import explains
from tinker_cookbook.recipes.multiplayer_rl.match import Result, play_match, wilson
from tinker_cookbook.recipes.multiplayer_rl.opponents import (
    ModelSettings,
    Opponent,
    opponent_by_name,
    short_name,
)
from tinker_cookbook.recipes.multiplayer_rl.text_arena.env import TICTACTOE, game_by_name
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.tokenizer_utils import get_tokenizer

NAMES = "random, optimal, base_model, or the tinker:// path of a checkpoint to sample from"


@chz.chz
class MatchConfig:
    """How the players of a game are reached, and what they play."""

    game: str = chz.field(default=TICTACTOE, doc="tictactoe, or the id of a game of TextArena: Nim-v0")
    with_history: bool = chz.field(default=False, doc="As the checkpoints were trained (tictactoe)")
    list_moves: bool = chz.field(default=False, doc="Likewise")
    list_threats: bool = chz.field(default=True, doc="Likewise")
    model_name: str = chz.field(default=TINY_MODEL, doc="Base model of the checkpoints")
    renderer_name: str | None = chz.field(default=None, doc="None: as the model was taught")
    max_tokens: int = chz.field(default=16, doc="Most tokens of a move")
    temperature: float = chz.field(default=1.0, doc="Of the models' sampling; 0: their likeliest move")
    seed: int = chz.field(default=0, doc="Of all that is drawn by lot")
    base_url: str | None = chz.field(
        default=None, doc="Server; None: TINKER_BASE_URL, else one on this machine"
    )

    def maker(self) -> GameMaker:
        return game_by_name(
            self.game,
            with_history=self.with_history,
            list_moves=self.list_moves,
            list_threats=self.list_threats,
            explain=explains(self.model_name),
        )

    def models(self) -> ModelSettings:
        name = self.renderer_name or get_recommended_renderer_name(self.model_name)
        renderer = get_renderer(name, get_tokenizer(self.model_name), model_name=self.model_name)
        return ModelSettings(self.model_name, renderer, self.max_tokens, self.temperature, self.base_url)


@chz.chz
class Config(MatchConfig):
    players: tuple[str, ...] = chz.field(
        default=("base_model", "random", "optimal"), doc=f"Each one of: {NAMES}"
    )
    games: int = chz.field(default=100, doc="Of each pair in each order of seats")
    concurrency: int = chz.field(default=32, doc="Games that are played at the same time")
    move_seconds: float = chz.field(
        default=120.0, doc="In which a player must move; the game is void otherwise"
    )
    json_path: str | None = chz.field(default=None, doc="File for the figures, besides the table")

    @chz.validate
    def _check(self) -> None:
        if len(self.players) < 2 or len(set(self.players)) < len(self.players):
            raise ConfigurationError(
                f"players={','.join(self.players)}: give two or more, each once ({NAMES})"
            )
        for name in ("games", "concurrency"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name}={getattr(self, name)} must be at least 1")


@dataclass(frozen=True)
class Row:
    player: str
    opponent: str
    seat: int | None  # None: both
    result: Result

    def figures(self) -> dict[str, Any]:
        result = self.result
        shares = {
            name: {
                "share": count / result.games if result.games else 0.0,
                "interval": wilson(count, result.games),
            }
            for name, count in (("win", result.wins), ("draw", result.draws), ("loss", result.losses))
        }
        return {**asdict(self), "games": result.games, **shares}


async def run(config: Config) -> list[Row]:
    models = await asyncio.to_thread(config.models)
    opponents = [await opponent_by_name(name, models) for name in config.players]
    rows: list[Row] = []
    for one, other in itertools.combinations(opponents, 2):
        rows += await _meet(config, one, other)
    return rows


async def _meet(config: Config, one: Opponent, other: Opponent) -> list[Row]:
    """Both orders of the seats. Every row is that of `one`: the other's is the same, turned round."""
    settings: dict[str, Any] = {
        "games": config.games,
        "seed": config.seed,
        "concurrency": config.concurrency,
        "move_seconds": config.move_seconds,
    }
    first, _ = await play_match(config.maker(), one, other, **settings)
    _, second = await play_match(config.maker(), other, one, **settings)
    results = ((0, first), (1, second), (None, first + second))
    return [Row(one.name, other.name, seat, result) for seat, result in results]


def table(rows: Sequence[Row]) -> str:
    width = max(len(short_name(name)) for row in rows for name in (row.player, row.opponent))
    names = f"{'player':{width}}  {'opponent':{width}}"
    head = f"{names}  seat  games  {'win':^17}  {'draw':^17}  {'loss':^17}  illegal  void"
    return "\n".join([head, *(_line(row, width) for row in rows)])


def _line(row: Row, width: int) -> str:
    result = row.result
    shares = "  ".join(_share(count, result.games) for count in (result.wins, result.draws, result.losses))
    seat = "both" if row.seat is None else str(row.seat)
    names = f"{short_name(row.player):{width}}  {short_name(row.opponent):{width}}"
    return f"{names}  {seat:>4}  {result.games:5}  {shares}  {result.illegal:7}  {result.void:4}"


def _share(count: int, games: int) -> str:
    low, high = wilson(count, games)
    share = count / games if games else 0.0
    return f"{share:6.1%} {f'({low:.0%}-{high:.0%})':10}"


def main(config: Config) -> None:
    rows = asyncio.run(run(config))
    print(table(rows))
    if config.json_path is not None:
        figures = [row.figures() for row in rows]
        Path(config.json_path).expanduser().write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    sys.exit(run_command(lambda: main(chz.entrypoint(Config))))
