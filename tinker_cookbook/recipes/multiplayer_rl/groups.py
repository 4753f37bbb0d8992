"""Groups of seats to train in: all seats of some games, or one seat of games against others."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import ClassVar

from tinker_cookbook.recipes.multiplayer_rl.coordinator import Coordinator
from tinker_cookbook.recipes.multiplayer_rl.game import GameMaker
from tinker_cookbook.recipes.multiplayer_rl.opponents import Opponent, others, seated, short_name
from tinker_cookbook.recipes.multiplayer_rl.seat_env import Rewards, SeatEnv
from tinker_cookbook.renderers import Renderer
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, Metrics, RLDataset, Trajectory
from tinker_cookbook.utils.seeds import derive_seed

FEWEST_GAMES = 4  # to tell what a seat is worth


@dataclass(frozen=True)
class Table:
    """What games are played, how they are told, and what they are worth."""

    maker: GameMaker
    renderer: Renderer
    rewards: Rewards = field(default_factory=Rewards)
    move_seconds: float = 600.0  # in which a player must move


@dataclass(frozen=True)
class SelfPlayGroupBuilder(EnvGroupBuilder):
    """Games in which the policy has every seat. All begin alike, and all seats of all games are one group."""

    members_play_together: ClassVar[bool] = True

    table: Table
    num_games: int
    seed: int

    async def make_envs(self) -> Sequence[Env]:
        return [env for _ in range(self.num_games) for env in self._game()]

    def _game(self) -> list[Env]:
        table = self.table
        game = table.maker(self.seed)
        coordinator = Coordinator(game, move_seconds=table.move_seconds)
        return [SeatEnv(table.renderer, coordinator, seat, table.rewards) for seat in range(game.num_players)]

    async def compute_group_rewards(
        self, trajectory_group: list[Trajectory], env_group: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        """Takes out what a seat earns just by its place, such as the first move: the mean over all seats stays.

        A player is then compared with those in its own seat in the other games, of which there must be enough.
        """
        if self.num_games < FEWEST_GAMES:
            return await super().compute_group_rewards(trajectory_group, env_group)
        rewards_G = [sum(turn.reward for turn in each.transitions) for each in trajectory_group]
        seats = self.table.maker.num_players
        mean = fmean(rewards_G)
        handicaps = [mean - fmean(rewards_G[seat::seats]) for seat in range(seats)]
        return [(handicaps[index % seats], {}) for index in range(len(rewards_G))]

    def logging_tags(self) -> list[str]:
        return ["self_play"]


class SoloGroupBuilder(SelfPlayGroupBuilder):
    """Games for one: nobody waits for another, and each can be tried again by itself."""

    members_play_together: ClassVar[bool] = False

    async def make_env(self, index: int) -> Env:
        (env,) = self._game()
        return env

    def logging_tags(self) -> list[str]:
        return []


@dataclass(frozen=True)
class VersusGroupBuilder(EnvGroupBuilder):
    """Games in which the policy has one seat, the same in all, and an opponent each of the others."""

    table: Table
    opponent: Opponent
    seat: int
    num_envs: int
    seed: int

    async def make_envs(self) -> Sequence[Env]:
        return [await self.make_env(number) for number in range(self.num_envs)]

    async def make_env(self, index: int) -> Env:
        table = self.table
        game = table.maker(self.seed)
        opponents = dict.fromkeys(others(game.num_players, self.seat), self.opponent)
        players = await seated(opponents, self.seed, index)
        coordinator = Coordinator(game, players, move_seconds=table.move_seconds)
        return SeatEnv(table.renderer, coordinator, self.seat, table.rewards)

    def logging_tags(self) -> list[str]:
        return [f"vs_{short_name(self.opponent.name)}"]


@dataclass(frozen=True)
class GamesDataset(RLDataset):
    """Batches that are made up as they are asked for: the same number is the same batch.

    Without an opponent the policy plays itself; with some, groups take them in turn, each in every one of `seats`.
    """

    table: Table
    opponents: Sequence[Opponent]
    seats: Sequence[int]
    batch_size: int  # groups
    group_size: int  # seats of the policy in a group
    n_batches: int
    seed: int
    split: str

    def __len__(self) -> int:
        return self.n_batches

    def get_batch(self, index: int) -> list[EnvGroupBuilder]:
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        first = index * self.batch_size
        return [self._group(number) for number in range(first, first + self.batch_size)]

    def _group(self, number: int) -> EnvGroupBuilder:
        seed = derive_seed(self.seed, self.split, number)
        if not self.opponents:
            num_players = self.table.maker.num_players
            kind = SoloGroupBuilder if num_players == 1 else SelfPlayGroupBuilder
            return kind(self.table, self.group_size // num_players, seed)
        turn, which = divmod(number, len(self.opponents))
        seat = self.seats[turn % len(self.seats)]
        return VersusGroupBuilder(self.table, self.opponents[which], seat, self.group_size, seed)
