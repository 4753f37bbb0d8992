"""Games for two as environments: the built-in tic-tac-toe, or any of TextArena by its id."""

import chz

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.multiplayer_rl.dataset import GamesDatasetBuilder
from tinker_cookbook.recipes.multiplayer_rl.game import GameMaker
from tinker_cookbook.recipes.multiplayer_rl.text_arena.text_arena_game import TextArenaMaker
from tinker_cookbook.recipes.multiplayer_rl.text_arena.tic_tac_toe import TicTacToeMaker
from tinker_cookbook.tasks import Split

TICTACTOE = "tictactoe"
MOST_PLIES = 9


def game_by_name(
    name: str,
    *,
    with_history: bool = False,
    list_moves: bool = False,
    list_threats: bool = False,
    explain: bool = False,
    random_plies: int = 0,
) -> GameMaker:
    if name == TICTACTOE:
        return TicTacToeMaker(with_history, list_moves, list_threats, explain, random_plies)
    return TextArenaMaker(name)


@chz.chz
class TwoPlayerDatasetBuilder(GamesDatasetBuilder):
    game: str = chz.field(default=TICTACTOE, doc="tictactoe, or the id of a game of TextArena: Nim-v0")
    with_history: bool = chz.field(
        default=False, doc="tictactoe: a player reads the whole game, and not just the board as it is"
    )
    list_moves: bool = chz.field(default=False, doc="tictactoe: the free cells are listed below the board")
    list_threats: bool = chz.field(
        default=False, doc="tictactoe: the cells are named with which a player would have three in a row"
    )
    explain: bool = chz.field(default=False, doc="tictactoe: say how a move is written")
    random_plies: int = chz.field(
        default=8,
        doc="tictactoe: most moves drawn by lot before a game of training, the same in all of a group",
    )
    test_opponents: tuple[str, ...] = chz.field(
        default=("random", "optimal"), doc="Who is played against in tests"
    )

    def maker(self, split: Split) -> GameMaker:
        return game_by_name(
            self.game,
            with_history=self.with_history,
            list_moves=self.list_moves,
            list_threats=self.list_threats,
            explain=self.explain,
            random_plies=self.random_plies if split == "train" else 0,
        )

    @chz.validate
    def _check_plies(self) -> None:
        if not 0 <= self.random_plies < MOST_PLIES:
            raise ConfigurationError(f"random_plies={self.random_plies} must be from 0 to {MOST_PLIES - 1}")
