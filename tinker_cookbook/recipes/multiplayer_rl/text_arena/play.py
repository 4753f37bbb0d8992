"""Play against a model, or another opponent, in the terminal.

python -m tinker_cookbook.recipes.multiplayer_rl.text_arena.play                                # the base model
python -m tinker_cookbook.recipes.multiplayer_rl.text_arena.play opponent=tinker://.../final seat=1
"""

import asyncio
import copy
import sys
from dataclasses import dataclass

import chz

from tinker_cookbook.command_line import run_command
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.multiplayer_rl.coordinator import Coordinator
from tinker_cookbook.recipes.multiplayer_rl.game import Ending, Game, IllegalMoveError
from tinker_cookbook.recipes.multiplayer_rl.opponents import opponent_by_name
from tinker_cookbook.recipes.multiplayer_rl.players import Player
from tinker_cookbook.recipes.multiplayer_rl.text_arena.tournament import NAMES, MatchConfig
from tinker_cookbook.renderers.messages import get_text_content
from tinker_cookbook.rl.play_w_env import get_async_input
from tinker_cookbook.utils.seeds import derive_seed


@chz.chz
class Config(MatchConfig):
    opponent: str = chz.field(default="base_model", doc=f"One of: {NAMES}")
    seat: int = chz.field(default=0, doc="Yours; 0 begins")
    move_seconds: float = chz.field(default=3600.0, doc="In which you must move")

    @chz.validate
    def _check_seat(self) -> None:
        if self.seat not in (0, 1):
            raise ConfigurationError(f"seat={self.seat}: a game for two has the seats 0 and 1")


@dataclass
class Person(Player):
    async def __call__(self, game: Game, seat: int) -> str:
        """People mistype: an illegal move is asked for again, where a model would have lost the game."""
        for message in game.news(seat):
            print(f"\n{get_text_content(message)}")
        while True:
            try:
                move = await get_async_input("\nyour move> ")
            except EOFError as error:
                raise ConfigurationError(
                    "the input ended before the game did; play in a terminal, or pipe in every move"
                ) from error
            if (objection := _objection(game, move)) is None:
                return move
            print(objection)


def _objection(game: Game, move: str) -> str | None:
    """Why a move would be illegal, of games that know their moves."""
    try:
        game.legal_moves()
    except ConfigurationError:
        return None
    try:
        copy.deepcopy(game).play(move)
    except IllegalMoveError as error:
        return str(error)
    return None


@dataclass
class Shown(Player):
    """A player whose moves are printed."""

    player: Player
    name: str

    async def __call__(self, game: Game, seat: int) -> str:
        move = await self.player(game, seat)
        print(f"\n{self.name} plays {move}")
        return move


async def play(config: Config) -> Ending:
    models = await asyncio.to_thread(config.models)
    opponent = await opponent_by_name(config.opponent, models)
    player = await opponent.player(derive_seed(config.seed, "play"))
    players = {config.seat: Person(), 1 - config.seat: Shown(player, opponent.name)}
    game = config.maker()(config.seed)
    ending = await Coordinator(game, players, move_seconds=config.move_seconds).play_automatically()
    print(f"\n{_outcome(ending, config.seat)}: {ending.reason}")
    return ending


def _outcome(ending: Ending, seat: int) -> str:
    if ending.won(seat):
        return "won"
    if ending.lost(seat):
        return "lost"
    return "drawn" if ending.drawn(seat) else "not decided"


def main(config: Config) -> None:
    asyncio.run(play(config))


if __name__ == "__main__":
    sys.exit(run_command(lambda: main(chz.entrypoint(Config))))
