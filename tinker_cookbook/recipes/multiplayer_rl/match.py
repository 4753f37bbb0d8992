"""Matches between players that move by themselves, and what comes of them."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tinker_cookbook.recipes.multiplayer_rl.coordinator import Coordinator
from tinker_cookbook.recipes.multiplayer_rl.game import Ending, EndKind, GameMaker
from tinker_cookbook.recipes.multiplayer_rl.opponents import Opponent, seated
from tinker_cookbook.utils.concurrency import gather_or_cancel
from tinker_cookbook.utils.seeds import derive_seed

_Z95 = 1.959964  # of the normal distribution: two sides, 95 %


@dataclass(frozen=True)
class Result:
    """Of one player in one seat against another."""

    wins: int
    draws: int
    losses: int
    illegal: int  # losses by an illegal move
    void: int = 0  # games that came to nothing: a player took too long

    @property
    def games(self) -> int:
        return self.wins + self.draws + self.losses

    def __add__(self, other: "Result") -> "Result":
        return Result(*(a + b for a, b in zip(self._counts(), other._counts(), strict=True)))

    def _counts(self) -> tuple[int, int, int, int, int]:
        return self.wins, self.draws, self.losses, self.illegal, self.void


def wilson(hits: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a share, after Wilson: also right for few games and shares of 0 or 1."""
    if trials == 0:
        return 0.0, 1.0
    share, z2 = hits / trials, _Z95**2
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = _Z95 / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    return 0.0 if hits == 0 else centre - half, 1.0 if hits == trials else centre + half


async def play_one(
    maker: GameMaker, opponents: Sequence[Opponent], seed: int, *, move_seconds: float = 600.0
) -> Ending:
    """One game; the opponents are in the order of the seats."""
    players = await seated(dict(enumerate(opponents)), seed)
    return await Coordinator(maker(seed), players, move_seconds=move_seconds).play_automatically()


async def play_match(
    maker: GameMaker,
    first: Opponent,
    second: Opponent,
    games: int,
    *,
    seed: int = 0,
    concurrency: int = 32,
    move_seconds: float = 600.0,
) -> tuple[Result, Result]:
    """So many games with `first` in seat 0 against `second`; the result of each."""
    places = asyncio.Semaphore(concurrency)

    async def one(number: int) -> Ending:
        async with places:
            seed_of_game = derive_seed(seed, first.name, second.name, number)
            return await play_one(maker, (first, second), seed_of_game, move_seconds=move_seconds)

    endings = await gather_or_cancel(one(number) for number in range(games))
    return result_of(endings, seat=0), result_of(endings, seat=1)


def result_of(endings: Sequence[Ending], seat: int) -> Result:
    counted = [ending for ending in endings if ending.kind in (EndKind.FINISHED, EndKind.ILLEGAL_MOVE)]
    return Result(
        wins=sum(ending.won(seat) for ending in counted),
        draws=sum(ending.drawn(seat) for ending in counted),
        losses=sum(ending.lost(seat) for ending in counted),
        illegal=sum(ending.kind == EndKind.ILLEGAL_MOVE and ending.offender == seat for ending in counted),
        void=len(endings) - len(counted),
    )
