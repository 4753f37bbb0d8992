"""A position of tic-tac-toe, met alone or within its game, and one move to make in it.

Cells are numbered 0 to 8, O begins, and a move is a cell's number in square brackets. The board looks as TextArena
draws it: a free cell shows its number.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tinker_cookbook.tasks.types import Message, Problem, Task, user

Board = tuple[str, ...]  # nine of "O", "X" and ""

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
EMPTY: Board = ("",) * 9
INTROS = (
    "",
    "Tic-tac-toe. You are {mark}. Move with [cell].\n\n",
    "You play {mark} in tic-tac-toe. Write the cell of your move in square brackets, such as [4].\n\n",
)
_MOVE = re.compile(r"\[\s*(\d+)\s*\]")


def free_cells(board: Board) -> list[int]:
    return [cell for cell, mark in enumerate(board) if not mark]


def winner(board: Board) -> str | None:
    return next((board[a] for a, b, c in LINES if board[a] and board[a] == board[b] == board[c]), None)


def threats(board: Board, mark: str) -> list[int]:
    """The cells with which it would have three in a row."""
    return [cell for cell in free_cells(board) if winner((*board[:cell], mark, *board[cell + 1 :])) == mark]


def is_over(board: Board) -> bool:
    return winner(board) is not None or not free_cells(board)


def placed(board: Board, cell: int) -> Board:
    """The board after the side to move takes the cell; O moves when both have as many."""
    mark = to_move(board)
    return (*board[:cell], mark, *board[cell + 1 :])


def to_move(board: Board) -> str:
    return "O" if board.count("O") == board.count("X") else "X"


def drawn(board: Board) -> str:
    cells = [f" {mark or cell} " for cell, mark in enumerate(board)]
    return "\n---+---+---\n".join("|".join(cells[row : row + 3]) for row in (0, 3, 6))


def observation(board: Board, *, list_moves: bool, list_threats: bool = False) -> str:
    parts: list[str] = []
    if list_threats:
        wins = {mark: ", ".join(f"[{cell}]" for cell in threats(board, mark)) for mark in "OX"}
        parts += [f"{mark} wins with {cells}." for mark, cells in wins.items() if cells]
    parts.append(f"Current Board:\n\n{drawn(board)}")
    if list_moves:
        parts.append("Available Moves: " + ", ".join(f"'[{cell}]'" for cell in free_cells(board)))
    return "\n\n".join(parts)


def parse_move(reply: str) -> int | None:
    """The cell of the first bracketed number."""
    found = _MOVE.search(reply)
    return int(found[1]) if found else None


@dataclass(frozen=True)
class Position(Problem):
    moves: tuple[int, ...]  # of both sides, from the empty board on
    intro: str = INTROS[1]
    with_history: bool = False  # the whole game as a conversation, or this board alone
    list_moves: bool = True

    @property
    def key(self) -> str:
        return "tic-tac-toe: " + "".join(mark or "." for mark in self.board)

    @property
    def board(self) -> Board:
        return self._board_after(len(self.moves))

    def _board_after(self, plies: int) -> Board:
        board = EMPTY
        for cell in self.moves[:plies]:
            board = placed(board, cell)
        return board

    @property
    def prompt(self) -> list[Message]:
        intro = self.intro.format(mark=to_move(self.board))
        if not self.with_history:
            return [user(intro + observation(self.board, list_moves=self.list_moves))]
        messages: list[Message] = []
        for ply in range(len(self.moves) % 2, len(self.moves), 2):
            seen = observation(self._board_after(ply), list_moves=self.list_moves)
            messages += [user(seen), {"role": "assistant", "content": f"[{self.moves[ply]}]"}]
        messages.append(user(observation(self.board, list_moves=self.list_moves)))
        messages[0] = user(intro + messages[0]["content"])
        return messages

    def check(self, replies: Sequence[str]) -> bool:
        return self.well_formed(replies) and parse_move(replies[-1]) in free_cells(self.board)

    def well_formed(self, replies: Sequence[str]) -> bool:
        return _MOVE.fullmatch(replies[-1].strip()) is not None

    def right_reply(self, replies: Sequence[str], rng: random.Random) -> str:
        return f"[{rng.choice(free_cells(self.board))}]"

    def wrong_reply(self, replies: Sequence[str], rng: random.Random) -> str:
        """A cell that is taken, or no brackets."""
        taken = [cell for cell, mark in enumerate(self.board) if mark]
        if taken and rng.random() < 0.7:
            return f"[{rng.choice(taken)}]"
        return str(rng.choice(free_cells(self.board)))


class TicTacToe(Task[Position]):
    name = "tictactoe"

    def draw(self, rng: random.Random) -> Position:
        """A position that random play reaches and in which the game goes on."""
        moves: list[int] = []
        board = EMPTY
        for _ in range(rng.randrange(9)):
            after = placed(board, cell := rng.choice(free_cells(board)))
            if is_over(after):
                break
            board = after
            moves.append(cell)
        # A game is told only if the boards its player met before are of the train split: they are text, too.
        met = (Position(tuple(moves[:ply])) for ply in range(len(moves) % 2, len(moves), 2))
        return Position(
            tuple(moves),
            intro=rng.choice(INTROS),
            with_history=rng.random() < 0.3 and all(position.split == "train" for position in met),
            list_moves=rng.random() < 0.7,
        )
