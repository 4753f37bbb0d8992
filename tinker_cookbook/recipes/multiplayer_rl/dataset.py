"""The settings that all games have in common, and the data sets that come of them."""

import asyncio
from abc import abstractmethod
from collections.abc import Sequence

import chz

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.model_info import get_recommended_renderer_name
from tinker_cookbook.recipes.multiplayer_rl.game import GameMaker
from tinker_cookbook.recipes.multiplayer_rl.groups import GamesDataset, Table
from tinker_cookbook.recipes.multiplayer_rl.opponents import (
    NAMES,
    SELF_PLAY,
    ModelSettings,
    Opponent,
    opponent_by_name,
)
from tinker_cookbook.recipes.multiplayer_rl.seat_env import Rewards
from tinker_cookbook.renderers import Renderer, get_renderer
from tinker_cookbook.rl.types import RLDatasetBuilder
from tinker_cookbook.tasks import Split
from tinker_cookbook.tokenizer_utils import get_tokenizer


@chz.chz
class GamesDatasetBuilder(RLDatasetBuilder):
    model_name_for_tokenizer: str = chz.field(doc="The model that plays")
    renderer_name: str = chz.field(doc="How conversations are written")
    batch_size: int = chz.field(default=16, doc="Groups of a batch")
    group_size: int = chz.field(default=16, doc="Seats of the policy in a group, whose rewards are compared")
    n_batches: int = chz.field(default=50, doc="Batches to train on")
    seed: int = chz.field(default=0, doc="Of all that is drawn by lot")

    opponents: tuple[str, ...] = chz.field(default=(SELF_PLAY,), doc=f"Each one of: {NAMES}")
    league_size: int = chz.field(default=8, doc="Last checkpoints of the run that play in a league")
    log_path: str | None = chz.field(default=None, doc="Folder of the run, where a league finds them")
    opponent_model: str | None = chz.field(default=None, doc="What base_model is; None: the model that plays")
    opponent_renderer_name: str | None = chz.field(default=None, doc="None: as that model was taught")
    max_tokens: int = chz.field(default=16, doc="Most tokens of a move of an opponent that is a model")
    opponent_temperature: float = chz.field(default=1.0, doc="Of its sampling")
    base_url: str | None = chz.field(default=None, doc="Server where it is")

    test_opponents: tuple[str, ...] = chz.field(default=("random",), doc="Who is played against in tests")
    test_games: int = chz.field(default=100, doc="Games against each of them; 0: no test")
    illegal_move_reward: float = chz.field(
        default=-2.0, doc="Of the player who makes one, which ends the game"
    )
    draw_reward: float = chz.field(default=0.0, doc="Of each player; a win is 1 and a loss -1")
    move_seconds: float = chz.field(default=600.0, doc="In which a player must move")

    @abstractmethod
    def maker(self, split: Split) -> GameMaker: ...

    def trained_seats(self) -> Sequence[int]:
        """Which ones the policy takes in turn when it does not play itself."""
        return range(self.maker("train").num_players)

    @chz.validate
    def _check(self) -> None:
        for name in ("batch_size", "group_size", "n_batches"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name}={getattr(self, name)} must be at least 1")
        if not self.move_seconds > 0:
            raise ConfigurationError(
                f"move_seconds={self.move_seconds} must be above 0: nobody waits for ever"
            )
        if SELF_PLAY in self.opponents and len(self.opponents) > 1:
            raise ConfigurationError(
                f"opponents={','.join(self.opponents)}: {SELF_PLAY} has every seat and goes with no other; for a "
                "mixture of what is now and what was, use league"
            )
        num_players = self.maker("train").num_players
        if self.opponents == (SELF_PLAY,) and self.group_size % num_players:
            raise ConfigurationError(
                f"group_size={self.group_size} must be a multiple of the {num_players} players of a game"
            )

    async def __call__(self) -> tuple[GamesDataset, GamesDataset | None]:
        renderer = await _renderer(self.model_name_for_tokenizer, self.renderer_name)
        trained_with = await self._opponents(self.opponents, renderer)
        train = self._dataset(
            "train", renderer, trained_with, self.batch_size, self.group_size, self.n_batches
        )
        train.table.maker(seed=0)  # says now what it would say in every rollout
        if not self.test_games:
            return train, None
        tested = await self._opponents(self.test_opponents, renderer)
        groups = self.test_games * max(1, len(tested))
        size = 1 if tested else self.maker("test").num_players
        return train, self._dataset("test", renderer, tested, groups, size, n_batches=1)

    async def _opponents(self, names: Sequence[str], renderer: Renderer) -> list[Opponent]:
        """None when the policy plays itself."""
        model = self.opponent_model or self.model_name_for_tokenizer
        if self.opponent_model is not None or self.opponent_renderer_name is not None:
            renderer = await _renderer(
                model, self.opponent_renderer_name or get_recommended_renderer_name(model)
            )
        models = ModelSettings(model, renderer, self.max_tokens, self.opponent_temperature, self.base_url)
        return [
            await opponent_by_name(name, models, log_path=self.log_path, league_size=self.league_size)
            for name in names
            if name != SELF_PLAY
        ]

    def _dataset(
        self,
        split: Split,
        renderer: Renderer,
        opponents: Sequence[Opponent],
        batch_size: int,
        group_size: int,
        n_batches: int,
    ) -> GamesDataset:
        rewards = Rewards(self.illegal_move_reward, self.draw_reward)
        return GamesDataset(
            table=Table(self.maker(split), renderer, rewards, self.move_seconds),
            opponents=tuple(opponents),
            seats=tuple(self.trained_seats()),
            batch_size=batch_size,
            group_size=group_size,
            n_batches=n_batches,
            seed=self.seed,
            split=split,
        )


async def _renderer(model_name: str, renderer_name: str) -> Renderer:
    tokenizer = await asyncio.to_thread(get_tokenizer, model_name)
    return get_renderer(renderer_name, tokenizer, model_name=model_name)
