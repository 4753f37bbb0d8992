"""Tic-tac-toe in the words in which the tiny model was taught it, which are nearly those of TextArena.

Needs no package. `TextArenaMaker("TicTacToe-v0")` is the same game as that package tells it.
"""

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from tinker_cookbook.recipes.multiplayer_rl.game import Ending, Game, GameMaker, IllegalMoveError, finished
from tinker_cookbook.renderers import Message
from tinker_cookbook.tasks.tictactoe import (
    EMPTY,
    INTROS,
    Board,
    free_cells,
    is_over,
    observation,
    parse_move,
    placed,
    to_move,
    winner,
)

MARKS = "OX"  # of player 0, who begins, and of player 1


class TicTacToe(Game):
    name = "tictactoe"

    def __init__(
        self,
        *,
        with_history: bool = False,
        list_moves: bool = False,
        list_threats: bool = False,
        explain: bool = False,
        board: Board = EMPTY,
    ):
        """`with_history`: a player reads the whole game, and not just the board as it is. `explain`: say how a move is
        written, to a model that was not taught this game."""
        self.board = board
        self.with_history = with_history
        self.list_moves = list_moves
        self.list_threats = list_threats
        self._intro = INTROS[2 if explain else 1]
        self._introduced: set[int] = set()

    @property
    def to_move(self) -> int:
        return MARKS.index(to_move(self.board))

    def forgets(self, player: int) -> bool:
        return not self.with_history

    def news(self, player: int) -> list[Message]:
        intro = "" if player in self._introduced else self._intro.format(mark=MARKS[player])
        if self.with_history:
            self._introduced.add(player)
        seen = observation(self.board, list_moves=self.list_moves, list_threats=self.list_threats)
        return [Message(role="user", content=intro + seen)]

    def play(self, move: str) -> None:
        cell = parse_move(move)
        if cell is None:
            raise IllegalMoveError(f"no cell in square brackets in {move!r}")
        if cell not in free_cells(self.board):
            raise IllegalMoveError(
                f"cell {cell} is {'taken' if cell < len(self.board) else 'not on the board'}"
            )
        self.board = placed(self.board, cell)

    @property
    def ending(self) -> Ending | None:
        if not is_over(self.board):
            return None
        mark = winner(self.board)
        if mark is None:
            return finished("the board is full", (0.0, 0.0))
        return finished(f"{mark} has three in a row", [1.0 if mark == own else -1.0 for own in MARKS])

    def legal_moves(self) -> Sequence[str]:
        return [f"[{cell}]" for cell in free_cells(self.board)]

    def best_moves(self) -> Sequence[str]:
        return [f"[{cell}]" for cell in best_cells(self.board)]


@dataclass(frozen=True)
class TicTacToeMaker(GameMaker):
    with_history: bool = False
    list_moves: bool = False
    list_threats: bool = False
    explain: bool = False
    random_plies: int = 0  # most moves drawn by lot before the game begins
    name: str = "tictactoe"

    def __call__(self, seed: int) -> TicTacToe:
        board = random_position(self.random_plies, random.Random(seed))
        return TicTacToe(
            with_history=self.with_history,
            list_moves=self.list_moves,
            list_threats=self.list_threats,
            explain=self.explain,
            board=board,
        )


def random_position(most_plies: int, rng: random.Random) -> Board:
    """After so many random moves at most, and before the game is over."""
    board = EMPTY
    for _ in range(rng.randint(0, most_plies)):
        after = placed(board, rng.choice(free_cells(board)))
        if is_over(after):
            break
        board = after
    return board


def best_cells(board: Board) -> list[int]:
    """Minimax: all cells after which nothing is lost that could be kept."""
    value = _value(board)
    return [cell for cell in free_cells(board) if -_value(placed(board, cell)) == value]


@functools.cache  # 5,478 positions
def _value(board: Board) -> int:
    """For the side to move: 1 if it can win, 0 if it can hold a draw, -1 if it loses."""
    if winner(board) is not None:
        return -1
    return max((-_value(placed(board, cell)) for cell in free_cells(board)), default=0)
