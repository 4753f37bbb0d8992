"""Games for two as environments: the built-in tic-tac-toe, or any of TextArena by its id."""

import chz

from tinker_cookbook.recipes.multiplayer_rl.dataset import GamesDatasetBuilder
from tinker_cookbook.recipes.multiplayer_rl.game import GameMaker
from tinker_cookbook.recipes.multiplayer_rl.text_arena.text_arena_game import TextArenaMaker
from tinker_cookbook.recipes.multiplayer_rl.text_arena.tic_tac_toe import TicTacToeMaker
from tinker_cookbook.tasks import Split

TICTACTOE = "tictactoe"


def game_by_name(name: str, *, with_history: bool = False, list_moves: bool = False) -> GameMaker:
    return TicTacToeMaker(with_history, list_moves) if name == TICTACTOE else TextArenaMaker(name)


@chz.chz
class TwoPlayerDatasetBuilder(GamesDatasetBuilder):
    game: str = chz.field(default=TICTACTOE, doc="tictactoe, or the id of a game of TextArena: Nim-v0")
    with_history: bool = chz.field(
        default=False, doc="tictactoe: a player reads the whole game, and not just the board as it is"
    )
    list_moves: bool = chz.field(default=False, doc="tictactoe: the free cells are listed below the board")
    test_opponents: tuple[str, ...] = chz.field(
        default=("random", "optimal"), doc="Who is played against in tests"
    )

    def maker(self, split: Split) -> GameMaker:
        return game_by_name(self.game, with_history=self.with_history, list_moves=self.list_moves)
