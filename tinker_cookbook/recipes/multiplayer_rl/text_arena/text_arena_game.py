"""Any two-player game of the `textarena` package, by its id.

A player reads what the game says and what the other player wrote; what it wrote itself stands in its conversation
already. The package allows a second try after an invalid move; here the first one ends the game.
"""

import contextlib
import difflib
import importlib
import random
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.multiplayer_rl.game import Ending, Game, GameMaker, IllegalMoveError, finished
from tinker_cookbook.recipes.multiplayer_rl.text_arena.tic_tac_toe import best_cells
from tinker_cookbook.renderers import Message
from tinker_cookbook.tasks.tictactoe import free_cells

INSTALL = "pip install 'open-tinker-cookbook[games]' (or pip install textarena==0.7.4)"
_LISTED = re.compile(r"(?:Available|Valid) moves: *([^\n]*)", re.IGNORECASE)
_BRACKETED = re.compile(r"\[[^\[\]]+\]")


class TextArenaGame(Game):
    def __init__(self, game_id: str, seed: int):
        self.name = game_id
        self._random_state = random.Random(seed).getstate()
        with self._own_randomness():
            self._env = _make(game_id, seed)

    @property
    def to_move(self) -> int:
        return self._env.state.current_player_id

    def news(self, player: int) -> list[Message]:
        with self._own_randomness():
            _, observed = self._env.get_observation()
        boards = [index for index, (_, _, kind) in enumerate(observed) if kind.name == "GAME_BOARD"]
        texts = [
            _told(sender, text)
            for index, (sender, text, _) in enumerate(observed)
            if sender != player and index not in boards[:-1]  # boards of the past are of no use
        ]
        return [Message(role="user", content="\n\n".join(texts))]

    def play(self, move: str) -> None:
        mover = self.to_move
        self._env.state.error_allowance = 0
        with self._own_randomness():
            self._env.step(move)
        info = self._env.state.game_info[mover]
        if info["invalid_move"]:
            raise IllegalMoveError(str(info.get("reason", "invalid move")))

    @property
    def ending(self) -> Ending | None:
        if not self._env.state.done:
            return None
        rewards, info = self._env.close()
        scores = [float((rewards or {}).get(seat, 0.0)) for seat in range(self.num_players)]
        return finished(str(info[0].get("reason", "the game is over")), scores)

    def legal_moves(self) -> Sequence[str]:
        """For tic-tac-toe, and games that tell the player its moves. Reads the news of the player."""
        board = self._board()
        if board is not None:
            return [f"[{cell}]" for cell in free_cells(board)]
        listed = _LISTED.findall(str(self.news(self.to_move)[0]["content"]))
        return (_BRACKETED.findall(listed[-1]) if listed else []) or super().legal_moves()

    def best_moves(self) -> Sequence[str]:
        board = self._board()
        return super().best_moves() if board is None else [f"[{cell}]" for cell in best_cells(board)]

    def _board(self) -> tuple[str, ...] | None:
        """Of tic-tac-toe."""
        if not self.name.startswith("TicTacToe-"):
            return None
        return tuple(mark for row in self._env.state.game_state["board"] for mark in row)

    @contextlib.contextmanager
    def _own_randomness(self) -> Iterator[None]:
        """The package draws from the random numbers of the process: games that run at once must not mix theirs."""
        outer = random.getstate()
        random.setstate(self._random_state)
        try:
            yield
        finally:
            self._random_state = random.getstate()
            random.setstate(outer)


def _told(sender: int, text: str) -> str:
    return text.strip() if sender < 0 else f"[Player {sender}] {text.strip()}"


@dataclass(frozen=True)
class TextArenaMaker(GameMaker):
    name: str = "TicTacToe-v0"

    def __call__(self, seed: int) -> TextArenaGame:
        return TextArenaGame(self.name, seed)


def _make(game_id: str, seed: int) -> Any:
    """A game for two, without the package's wrappers, which would tell it all anew at every turn."""
    text_arena = _package()
    known = sys.modules["textarena.envs.registration"].ENV_REGISTRY
    if game_id not in known:
        near = difflib.get_close_matches(game_id, known, n=4, cutoff=0.4)
        raise ConfigurationError(
            f"textarena has no game {game_id!r}; near to it: {', '.join(near) or 'nothing'}"
        )
    try:
        with _no_downloads():
            env = text_arena.make(game_id)
            while isinstance(env, text_arena.Wrapper):
                env = env.env
            env.reset(num_players=2, seed=seed)
    except (SyntaxError, ImportError, LookupError, OSError, AssertionError, ValueError) as error:
        why = " ".join(str(error).split())[:300]
        raise ConfigurationError(
            f"the game {game_id} of textarena cannot be set up for two players: {why}"
        ) from error
    return env


def _package() -> Any:
    try:
        return importlib.import_module("textarena")
    except ImportError as error:
        raise ConfigurationError(
            f"games of TextArena need a package: {INSTALL}; without it there is tictactoe"
        ) from error


@contextlib.contextmanager
def _no_downloads() -> Iterator[None]:
    """Word games of the package download their lists when they are imported or made; here nothing is downloaded."""
    nltk: Any = importlib.import_module("nltk")

    def find(names: str | list[str], *_: object, **__: object) -> bool:
        for name in [names] if isinstance(names, str) else names:
            if not any(_is_there(nltk, f"{folder}/{name}") for folder in ("corpora", "taggers")):
                raise LookupError(f"it needs data of NLTK: python -m nltk.downloader {name}")
        return True

    download, nltk.download = nltk.download, find
    try:
        yield
    finally:
        nltk.download = download


def _is_there(nltk: Any, resource: str) -> bool:
    for path in (resource, f"{resource}.zip"):
        with contextlib.suppress(LookupError):
            nltk.data.find(path)
            return True
    return False
