"""Guess a number from hints: alone, or as a race in which everybody hears everybody's guesses."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

import chz

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.multiplayer_rl.dataset import GamesDatasetBuilder
from tinker_cookbook.recipes.multiplayer_rl.game import Ending, Game, GameMaker, IllegalMoveError, finished
from tinker_cookbook.renderers import Message
from tinker_cookbook.tasks import Split
from tinker_cookbook.tasks.guess_number import PHRASINGS, TOPS, Hidden
from tinker_cookbook.tasks.types import MAX_DRAWS

HOW_TO = " Write nothing but your guess, as 'Guess: 7'; you will hear whether my number is higher or lower."
RACE = " You are player {player} of {num_players}, and whoever finds it first wins."
_GUESS = re.compile(r"\s*Guess: *(\d+)")


@dataclass(frozen=True)
class Guess:
    player: int
    number: int
    hint: str


class GuessNumber(Game):
    """One player in the words in which the tiny model was taught it; more of them hear the others, too."""

    name = "guess_number"

    def __init__(self, hidden: Hidden, *, num_players: int = 1, explain: bool = False):
        """`explain`: say how it goes and how a guess is written, to a model that was not taught this game."""
        self.hidden = hidden
        self.num_players = num_players
        self.explain = explain
        self.guesses: list[Guess] = []
        self._read = [0] * num_players  # guesses of which each player has read
        self._found_by: int | None = None

    @property
    def to_move(self) -> int:
        return len(self.guesses) % self.num_players

    def news(self, player: int) -> list[Message]:
        lines = [] if player < len(self.guesses) else [self._opening(player)]
        lines += [self._told(guess, player) for guess in self.guesses[self._read[player] :]]
        self._read[player] = len(self.guesses)
        return [Message(role="user", content="\n".join(lines))]

    def _opening(self, player: int) -> str:
        text = self.hidden.phrasing.format(top=self.hidden.top)
        if not self.explain:
            return text
        race = RACE.format(player=player + 1, num_players=self.num_players) if self.num_players > 1 else ""
        return text + race + HOW_TO

    def _told(self, guess: Guess, player: int) -> str:
        if guess.player == player:
            return guess.hint
        return f"Player {guess.player + 1} guessed {guess.number}: {guess.hint}"

    def play(self, move: str) -> None:
        found = _GUESS.match(move)
        if found is None:
            raise IllegalMoveError(f"{move!r} does not begin with a guess such as 'Guess: 7'")
        number = int(found[1])
        if number == self.hidden.number:
            self._found_by = self.to_move
        hint = "Higher." if number < self.hidden.number else "Lower."
        self.guesses.append(Guess(self.to_move, number, hint))

    @property
    def ending(self) -> Ending | None:
        if self._found_by is not None:
            scores = [1.0 if player == self._found_by else -1.0 for player in range(self.num_players)]
            return finished(f"player {self._found_by} found {self.hidden.number}", scores)
        if len(self.guesses) == self.hidden.max_guesses * self.num_players:
            return finished(f"nobody found {self.hidden.number}", [0.0] * self.num_players)
        return None

    def bounds(self) -> tuple[int, int]:
        """What the hints leave open."""
        above = [guess.number for guess in self.guesses if guess.hint == "Higher."]
        below = [guess.number for guess in self.guesses if guess.hint == "Lower."]
        return max(above, default=0) + 1, min(below, default=self.hidden.top + 1) - 1

    def legal_moves(self) -> Sequence[str]:
        return [f"Guess: {number}" for number in range(1, self.hidden.top + 1)]

    def best_moves(self) -> Sequence[str]:
        """The middle, which is best for one player; for more it is a good guess."""
        return [f"Guess: {sum(self.bounds()) // 2}"]


@dataclass(frozen=True)
class GuessNumberMaker(GameMaker):
    split: Split
    num_players: int = 1
    tops: tuple[int, ...] = TOPS
    max_guesses: int = 6  # of each player
    explain: bool = False
    name: str = "guess_number"

    def __call__(self, seed: int) -> GuessNumber:
        rng = random.Random(seed)
        for _ in range(MAX_DRAWS):
            top = rng.choice(self.tops)
            hidden = Hidden(rng.randint(1, top), top, rng.choice(PHRASINGS), self.max_guesses)
            if hidden.split == self.split:
                return GuessNumber(hidden, num_players=self.num_players, explain=self.explain)
        raise ConfigurationError(
            f"no number up to {self.tops} is of the {self.split} split; give a larger top"
        )


@chz.chz
class GuessNumberDatasetBuilder(GamesDatasetBuilder):
    """One number in ten is never trained on, the same ones that the tiny model was never taught."""

    num_players: int = chz.field(default=1, doc="1, or more for a race to one number")
    tops: tuple[int, ...] = chz.field(default=TOPS, doc="Numbers are from 1 to one of these")
    max_guesses: int = chz.field(default=6, doc="Of each player")
    explain: bool = chz.field(default=False, doc="Say how a guess is written")
    illegal_move_reward: float = chz.field(
        default=-1.0, doc="Of a reply that is no guess, which ends the game"
    )
    test_opponents: tuple[str, ...] = chz.field(default=("self_play",), doc="Who is played against in tests")

    def maker(self, split: Split) -> GameMaker:
        return GuessNumberMaker(
            split, self.num_players, tuple(self.tops), max_guesses=self.max_guesses, explain=self.explain
        )

    @chz.validate
    def _check_numbers(self) -> None:
        for name in ("num_players", "max_guesses"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name}={getattr(self, name)} must be at least 1")
