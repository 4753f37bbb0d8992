"""Who sits in the other seats, by the name that a command line has for it."""

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tinker

from tinker_cookbook import service
from tinker_cookbook.checkpoint_utils import load_checkpoints_file
from tinker_cookbook.completers import TinkerTokenCompleter
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.multiplayer_rl.players import ModelPlayer, OptimalPlayer, Player, RandomPlayer
from tinker_cookbook.renderers import Renderer
from tinker_cookbook.utils.seeds import derive_seed

SELF_PLAY = "self_play"
LEAGUE = "league"
NAMES = f"{SELF_PLAY}, random, optimal, base_model, {LEAGUE}, or the tinker:// path of a checkpoint"


class Opponent(ABC):
    """Gives a player for each game. Must survive `pickle`."""

    name: str  # in metrics

    @abstractmethod
    async def player(self, seed: int) -> Player:
        """For one game; what it draws by lot comes from the seed."""


@dataclass(frozen=True)
class RandomOpponent(Opponent):
    name: str = "random"

    async def player(self, seed: int) -> Player:
        return RandomPlayer(random.Random(seed))


@dataclass(frozen=True)
class OptimalOpponent(Opponent):
    name: str = "optimal"

    async def player(self, seed: int) -> Player:
        return OptimalPlayer(random.Random(seed))


@dataclass(frozen=True)
class ModelOpponent(Opponent):
    """Weights that do not change: a base model or a checkpoint."""

    name: str
    sampling_client: tinker.SamplingClient
    renderer: Renderer
    max_tokens: int
    temperature: float = 1.0

    async def player(self, seed: int) -> Player:
        completer = TinkerTokenCompleter(self.sampling_client, self.max_tokens, self.temperature, seed=seed)
        return ModelPlayer(completer, self.renderer)


@dataclass
class League(Opponent):
    """For each game one of the run's own past: its checkpoints of the last so many, or the model it began as.

    Checkpoints are looked for at every game, so the league grows with the run; `save_every` says how fast.
    """

    models: "ModelSettings"
    log_path: str
    size: int
    name: str = LEAGUE
    _known: dict[str, ModelOpponent] = field(default_factory=dict)

    async def player(self, seed: int) -> Player:
        path = random.Random(seed).choice(await asyncio.to_thread(self.past))
        if path not in self._known:
            self._known[path] = await self.models.opponent(path)
        return await self._known[path].player(seed)

    def past(self) -> list[str]:
        """The base model, and the checkpoints to be sampled from."""
        records = load_checkpoints_file(self.log_path)
        return ["base_model", *[r.sampler_path for r in records if r.sampler_path is not None][-self.size :]]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_known": {}}  # another process connects by itself


@dataclass(frozen=True)
class ModelSettings:
    """How models are reached and asked, for opponents that are models."""

    base_model: str
    renderer: Renderer
    max_tokens: int
    temperature: float = 1.0
    base_url: str | None = None

    async def opponent(self, name: str) -> ModelOpponent:
        """`base_model`, or the path of a checkpoint."""
        service_client = await asyncio.to_thread(service.connect, self.base_url)
        if name == "base_model":
            client = await service_client.create_sampling_client_async(base_model=self.base_model)
        else:
            client = await service_client.create_sampling_client_async(model_path=name)
        return ModelOpponent(name, client, self.renderer, self.max_tokens, self.temperature)


async def opponent_by_name(
    name: str, models: ModelSettings, *, log_path: str | None = None, league_size: int = 8
) -> Opponent:
    if name == "random":
        return RandomOpponent()
    if name == "optimal":
        return OptimalOpponent()
    if name == LEAGUE:
        if log_path is None:
            raise ConfigurationError("a league needs the log_path of the run whose checkpoints play in it")
        return League(models, log_path, league_size)
    if name == "base_model" or name.startswith("tinker://"):
        return await models.opponent(name)
    raise ConfigurationError(f"there is no opponent {name!r}; there are {NAMES}")


async def seated(opponents: Mapping[int, Opponent], *seed_parts: int | str) -> dict[int, Player]:
    """Players for the seats of one game."""
    return {
        seat: await opponent.player(derive_seed(*seed_parts, seat)) for seat, opponent in opponents.items()
    }


def short_name(name: str) -> str:
    """For a table or a metric: the last parts of a path."""
    return "/".join(name.removeprefix("tinker://").split("/")[-2:]) if "/" in name else name


def others(num_players: int, seat: int) -> Sequence[int]:
    return [each for each in range(num_players) if each != seat]
