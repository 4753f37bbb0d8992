"""Players that move by themselves: at random, as well as can be, as a model does, or as a person types."""

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import tinker

from tinker_cookbook.completers import TinkerTokenCompleter
from tinker_cookbook.recipes.multiplayer_rl.game import Game, IllegalMoveError
from tinker_cookbook.renderers import Message, Renderer
from tinker_cookbook.renderers.messages import get_text_content


class Player(ABC):
    """One player in one game."""

    @abstractmethod
    async def __call__(self, game: Game, seat: int) -> str:
        """Its move, as text. Raises `IllegalMoveError` if it is none."""


@dataclass
class RandomPlayer(Player):
    """Any of the legal moves."""

    rng: random.Random

    async def __call__(self, game: Game, seat: int) -> str:
        return self.rng.choice(game.legal_moves())


@dataclass
class OptimalPlayer(Player):
    """Any of the best moves."""

    rng: random.Random

    async def __call__(self, game: Game, seat: int) -> str:
        return self.rng.choice(game.best_moves())


@dataclass
class ModelPlayer(Player):
    """Reads and writes as a player that is trained does, in a conversation of its own."""

    completer: TinkerTokenCompleter
    renderer: Renderer
    _conversation: list[Message] = field(default_factory=list)

    async def __call__(self, game: Game, seat: int) -> str:
        if game.forgets(seat):
            self._conversation = []
        self._conversation += game.news(seat)
        prompt: tinker.ModelInput = self.renderer.build_generation_prompt(self._conversation)
        sampled = await self.completer(prompt, self.renderer.get_stop_sequences())
        message = read_reply(self.renderer, sampled.tokens, sampled.stop_reason)
        self._conversation.append(message)
        return get_text_content(message)


def read_reply(renderer: Renderer, tokens: list[int], stop_reason: tinker.StopReason | None) -> Message:
    """What was sampled, as a message. Raises `IllegalMoveError` if it does not end as a message must."""
    message, termination = renderer.parse_response(tokens)
    if stop_reason == "length":
        raise IllegalMoveError(f"the reply was cut off after {len(tokens)} tokens")
    if not termination.is_clean:
        raise IllegalMoveError(f"the reply is malformed ({termination.value})")
    return message
