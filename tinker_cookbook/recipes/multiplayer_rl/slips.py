"""Games in which the hand of one player slips: some of its moves are drawn by lot, and it is not asked for them.

Who always plays itself meets few positions, and learns nothing about those that a weaker player leads to. Here one
player of each game, drawn by lot, is that weaker player.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tinker_cookbook.recipes.multiplayer_rl.game import Ending, Game, GameMaker
from tinker_cookbook.renderers import Message
from tinker_cookbook.utils.seeds import derive_seed


class SlippingGame(Game):
    """`game`, with this share of the moves of one player drawn by lot. It must list its moves."""

    def __init__(self, game: Game, player: int, share: float, rng: random.Random):
        self.game = game
        self.name = game.name
        self.num_players = game.num_players
        self.slips_of = player
        self._share = share
        self._rng = rng
        self._slip()

    def play(self, move: str) -> None:
        self.game.play(move)
        self._slip()

    def _slip(self) -> None:
        """Numbers are drawn for every move, whoever makes it: games of the same seed have the same luck."""
        while self.game.ending is None:
            slips, which = self._rng.random() < self._share, self._rng.random()
            if not slips or self.game.to_move != self.slips_of:
                return
            moves = self.game.legal_moves()
            self.game.play(moves[int(which * len(moves))])

    @property
    def to_move(self) -> int:
        return self.game.to_move

    def news(self, player: int) -> list[Message]:
        return self.game.news(player)

    def forgets(self, player: int) -> bool:
        return self.game.forgets(player)

    @property
    def ending(self) -> Ending | None:
        return self.game.ending

    def forfeited(self, offender: int) -> tuple[float, ...]:
        return self.game.forfeited(offender)

    def legal_moves(self) -> Sequence[str]:
        return self.game.legal_moves()

    def best_moves(self) -> Sequence[str]:
        return self.game.best_moves()


@dataclass(frozen=True)
class SlippingMaker(GameMaker):
    """Whose hand slips, and which of the shares it is, comes from the seed."""

    maker: GameMaker
    shares: tuple[float, ...]

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.maker.name

    @property
    def num_players(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.maker.num_players

    def __call__(self, seed: int) -> SlippingGame:
        rng = random.Random(derive_seed(seed, "slips"))
        return SlippingGame(self.maker(seed), rng.randrange(self.num_players), rng.choice(self.shares), rng)
