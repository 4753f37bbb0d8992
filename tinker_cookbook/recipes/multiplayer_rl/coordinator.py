"""One game shared by players that run at the same time: who waits for whom, and what ends the game for all.

No player waits for ever. A game is over for everybody as soon as it is finished, a move is illegal, a player takes too
long, or the task of a player ends: failed, cancelled, or stopped at a limit that the game does not know of. Everything
happens in one event loop and states change between two awaits, so no lock is needed.
"""

import asyncio
import logging
from collections.abc import Mapping

from tinker_cookbook.recipes.multiplayer_rl.game import Ending, EndKind, Game, IllegalMoveError
from tinker_cookbook.recipes.multiplayer_rl.players import Player

logger = logging.getLogger(__name__)


class Coordinator:
    def __init__(
        self, game: Game, automatic: Mapping[int, Player] | None = None, *, move_seconds: float = 600.0
    ):
        """`automatic`: players that move by themselves, by their seats; the others call `turn` and `move`."""
        self.game = game
        self.ending: Ending | None = None
        self.moves: list[tuple[int, str]] = []  # of all players, as they were written
        self._automatic = dict(automatic or {})
        self._move_seconds = move_seconds
        self._changed = asyncio.Event()  # set when the state changes, and replaced by a new one
        self._is_driven = False

    def join(self, seat: int) -> None:
        """The current task plays this seat: when the task ends, the player is gone."""
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(lambda task: self.leave(seat, _why_done(task)))

    async def turn(self, seat: int) -> bool:
        """Waits until this player is to move: True, or False when the game is over."""
        while self.ending is None:
            mover = self.game.to_move
            if mover == seat:
                return True
            if mover in self._automatic and not self._is_driven:
                await self._drive(mover)
            else:
                await self._wait_for_change(mover)
        return False

    def move(self, seat: int, text: str) -> None:
        if self.ending is not None:  # it ended while the player was thinking
            return
        if seat != self.game.to_move:
            raise RuntimeError(f"player {seat} moves, and it is the turn of player {self.game.to_move}")
        self.moves.append((seat, text))
        try:
            self.game.play(text)
        except IllegalMoveError as error:
            self.forfeit(seat, str(error))
            return
        self.ending = self.game.ending
        self._wake()

    def forfeit(self, seat: int, reason: str) -> None:
        """What the player wrote is no legal move."""
        self._end(EndKind.ILLEGAL_MOVE, f"player {seat}: {reason}", seat)

    def leave(self, seat: int, reason: str) -> None:
        """The player moves no more. Nothing happens if the game is over."""
        self._end(EndKind.LEFT, f"player {seat} left: {reason}", seat)

    async def play_automatically(self) -> Ending:
        """A game in which every seat has a player of its own."""
        while self.ending is None:
            await self._drive(self.game.to_move)
        return self.ending

    # --- inside

    async def _drive(self, seat: int) -> None:
        self._is_driven = True
        limit = asyncio.timeout(self._move_seconds)
        try:
            async with limit:
                text = await self._automatic[seat](self.game, seat)
        except TimeoutError:
            if not limit.expired():
                raise
            self._took_too_long(seat)
        except IllegalMoveError as error:
            self.forfeit(seat, str(error))
        else:
            self.move(seat, text)
        finally:
            self._is_driven = False
            self._wake()

    async def _wait_for_change(self, mover: int) -> None:
        limit = asyncio.timeout(self._move_seconds)
        try:
            async with limit:
                await self._changed.wait()
        except TimeoutError:
            if not limit.expired():
                raise
            self._took_too_long(mover)

    def _took_too_long(self, seat: int) -> None:
        self._end(EndKind.TIMEOUT, f"player {seat} did not move in {self._move_seconds:g} s", seat)

    def _end(self, kind: EndKind, reason: str, offender: int) -> None:
        if self.ending is not None:
            return
        scores = (0.0,) * self.game.num_players
        if kind == EndKind.ILLEGAL_MOVE:
            scores = self.game.forfeited(offender)
        else:
            logger.warning("%s is over: %s", self.game.name, reason)
        self.ending = Ending(kind, reason, scores, offender)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _why_done(task: "asyncio.Task[object]") -> str:
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    return "its episode was stopped at a limit" if error is None else f"{type(error).__name__}: {error}"
