"""What a game is: players who take turns, and read and write text. It knows nothing of models, tokens or waiting."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.renderers import Message


class IllegalMoveError(Exception):
    """What was written is no move, or none that is allowed now."""


class EndKind(StrEnum):
    """Why a game is over."""

    FINISHED = "finished"  # by its rules
    ILLEGAL_MOVE = "illegal_move"
    TIMEOUT = "move_timeout"  # a player did not move in time
    LEFT = "player_left"  # a player failed, was cancelled or ran into a limit of its own


@dataclass(frozen=True)
class Ending:
    kind: EndKind
    reason: str  # for people
    scores: tuple[
        float, ...
    ]  # of each player: above 0 is won, below is lost; zeros if the game came to nothing
    offender: int | None = None  # the player who ended it against the rules

    def won(self, player: int) -> bool:
        return self.scores[player] > 0

    def lost(self, player: int) -> bool:
        return self.scores[player] < 0

    def drawn(self, player: int) -> bool:
        return self.kind == EndKind.FINISHED and self.scores[player] == 0


class Game(ABC):
    """One game, from its start to its end; not used again."""

    name: str
    num_players: int = 2

    @property
    @abstractmethod
    def to_move(self) -> int: ...

    @abstractmethod
    def news(self, player: int) -> list[Message]:
        """What a player who is to move reads: all that it has not read yet. Asked for once a turn."""

    def forgets(self, player: int) -> bool:
        """Whether each turn of this player is a conversation of its own. What it reads must then be complete."""
        return False

    @abstractmethod
    def play(self, move: str) -> None:
        """The move of the player who is to move, as it was written. Raises `IllegalMoveError`."""

    @property
    @abstractmethod
    def ending(self) -> Ending | None:
        """None while the game goes on."""

    def forfeited(self, offender: int) -> tuple[float, ...]:
        """The scores when a player makes an illegal move: of two players the other has won, of more nobody has."""
        other = 1.0 if self.num_players == 2 else 0.0
        return tuple(-1.0 if player == offender else other for player in range(self.num_players))

    def legal_moves(self) -> Sequence[str]:
        """Of the player who is to move, for one that moves at random."""
        raise ConfigurationError(f"{self.name} does not list its moves: there is no random player for it")

    def best_moves(self) -> Sequence[str]:
        """Those of them that are as good as any."""
        raise ConfigurationError(f"{self.name} has no optimal player; choose another opponent")


class GameMaker(ABC):
    """The settings of a game, of which games are made. Must survive `pickle`."""

    name: str
    num_players: int = 2

    @abstractmethod
    def __call__(self, seed: int) -> Game:
        """What is drawn by lot in the game comes from the seed."""


def finished(reason: str, scores: Sequence[float]) -> Ending:
    return Ending(EndKind.FINISHED, reason, tuple(scores))
