"""Players that wait for each other: whatever happens to one, nobody waits for ever."""

import asyncio
import collections
import random
import re
from typing import Any

import pytest

from tests.tinker_cookbook.recipes.multiplayer_rl.fakes import Policy, bytes_renderer, run_fast
from tinker_cookbook.recipes.multiplayer_rl.coordinator import Coordinator
from tinker_cookbook.recipes.multiplayer_rl.game import EndKind
from tinker_cookbook.recipes.multiplayer_rl.groups import SelfPlayGroupBuilder, Table
from tinker_cookbook.recipes.multiplayer_rl.guess_number.env import GuessNumberMaker
from tinker_cookbook.recipes.multiplayer_rl.players import Player, RandomPlayer
from tinker_cookbook.recipes.multiplayer_rl.seat_env import Rewards, SeatEnv
from tinker_cookbook.recipes.multiplayer_rl.text_arena.tic_tac_toe import TicTacToe, TicTacToeMaker
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.rollout_runner import run_rollout
from tinker_cookbook.rl.rollout_strategy import RetryOnFailure
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.rl.types import Trajectory

RENDERER = bytes_renderer()
MOVE_SECONDS = 10.0
HANG_SECONDS = 1e6


class BrokenError(Exception):
    pass


def random_reply(rng: random.Random):
    async def reply(prompt: str) -> str:
        await asyncio.sleep(rng.random())
        return rng.choice(re.findall(r"\[\d\]", prompt.rpartition("Available Moves")[2]))

    return reply


def scripted(moves: str):
    left = list(moves)

    async def reply(prompt: str) -> str:
        return f"[{left.pop(0)}]"

    return reply


def seats(game=None, automatic=None, **settings) -> list[SeatEnv]:
    game = game or TicTacToe(with_history=True, list_moves=True)
    coordinator = Coordinator(game, automatic, move_seconds=settings.pop("move_seconds", MOVE_SECONDS))
    return [
        SeatEnv(RENDERER, coordinator, seat)
        for seat in range(game.num_players)
        if seat not in (automatic or {})
    ]


async def play(replies, envs=None, limits=None) -> list[Any]:
    tasks = [
        run_rollout(Policy(reply), env, limits=limits)
        for reply, env in zip(replies, envs or seats(), strict=True)
    ]
    return await asyncio.gather(*tasks, return_exceptions=True)


def end_of(trajectory) -> tuple[float, str | None]:
    return sum(turn.reward for turn in trajectory.transitions), trajectory.stop_reason


# --- games that go as they should


def test_two_seats_take_turns_and_each_has_its_own_trajectory():
    first, second = run_fast(play([scripted("012"), scripted("34")]))
    assert [bytes(turn.ac.tokens[:-1]) for turn in first.transitions] == [b"[0]", b"[1]", b"[2]"]
    assert [bytes(turn.ac.tokens[:-1]) for turn in second.transitions] == [b"[3]", b"[4]"]
    assert end_of(first) == (1.0, "finished")
    assert end_of(second) == (-1.0, "finished")
    assert first.transitions[-1].metrics["win"] == second.transitions[-1].metrics["loss"] == 1.0


def test_a_draw_is_worth_what_the_rewards_say():
    envs = seats()
    for env in envs:
        env.rewards = Rewards(draw=0.75)
    for trajectory in run_fast(play([scripted("02378"), scripted("1456")], envs)):
        assert end_of(trajectory) == (0.75, "finished")
        assert trajectory.transitions[-1].metrics["draw"] == 1.0


def test_the_automatic_player_can_begin_and_each_seat_can_be_taken():
    async def games():
        for seat in (0, 1):
            for seed in range(20):
                envs = seats(automatic={1 - seat: RandomPlayer(random.Random(seed))})
                (trajectory,) = await play([random_reply(random.Random(-seed))], envs)
                assert trajectory.stop_reason == "finished"
                assert envs[0].coordinator.moves[0][0] == 0

    run_fast(games())


# --- what ends a game for both


def test_an_illegal_move_costs_its_player_and_ends_the_game():
    first, second = run_fast(play([scripted("01"), scripted("0")]))
    assert end_of(second) == (-2.0, "illegal_move")
    assert end_of(first) == (0.0, "other_illegal_move")
    assert "cell 0 is taken" in first.transitions[-1].logs["ended"]
    assert [turn.metrics["legal"] for turn in second.transitions] == [0.0]
    assert first.transitions[-1].metrics["win"] == 1.0


def test_a_player_who_never_moved_has_an_episode_without_tokens():
    first, second = run_fast(play([scripted("9"), scripted("")]))
    assert end_of(first) == (-2.0, "illegal_move")
    assert end_of(second) == (0.0, "other_illegal_move")
    assert [turn.ac.tokens for turn in second.transitions] == [[]]


def test_a_reply_that_was_cut_off_is_no_move():
    async def step():
        first, second = seats()
        waiting = asyncio.create_task(second.initial_observation())
        await first.initial_observation()
        result = await first.step(list(b"[4]"), extra={"stop_reason": "length"})
        await waiting
        return result

    result = run_fast(step())
    assert result.episode_done
    assert result.reward == -2.0
    assert "cut off after 3 tokens" in str(result.logs["ended"])


def test_a_player_that_fails_ends_the_game_of_the_other():
    async def fail(prompt: str) -> str:
        raise BrokenError("out of memory")

    first, second = run_fast(play([scripted("0"), fail]))
    assert isinstance(second, BrokenError)
    assert end_of(first) == (0.0, "other_player_left")
    assert "player 1 left: BrokenError: out of memory" in first.transitions[-1].logs["ended"]


def test_a_player_that_is_stopped_at_a_limit_is_gone():
    limits = RolloutLimits(max_turns=1)
    envs = seats()
    first, second = run_fast(play([scripted("0"), scripted("1")], envs, limits))
    assert first.stop_reason == "max_turns"
    assert end_of(second) == (0.0, "other_player_left")


def test_a_player_that_hangs_runs_out_of_time_and_its_late_move_counts_for_nothing():
    async def late(prompt: str) -> str:
        await asyncio.sleep(2 * MOVE_SECONDS)
        return "[4]"

    envs = seats()
    first, second = run_fast(play([scripted("0"), late], envs))
    assert end_of(first) == (0.0, "other_move_timeout")
    assert end_of(second) == (0.0, "move_timeout")
    assert [seat for seat, _ in envs[0].coordinator.moves] == [0]


def test_an_opponent_that_hangs_runs_out_of_time_too():
    class Hanging(Player):
        async def __call__(self, game, seat):
            await asyncio.sleep(HANG_SECONDS)
            return "[1]"

    (trajectory,) = run_fast(play([scripted("0")], seats(automatic={1: Hanging()})))
    assert end_of(trajectory) == (0.0, "other_move_timeout")


def test_an_opponent_that_fails_is_an_error_of_the_rollout():
    class Failing(Player):
        async def __call__(self, game, seat):
            raise BrokenError

    (error,) = run_fast(play([scripted("0")], seats(automatic={1: Failing()})))
    assert isinstance(error, BrokenError)


# --- whole groups


def test_a_group_whose_game_failed_is_played_again_as_a_whole():
    tries = []

    async def reply(prompt: str) -> str:
        tries.append(prompt)
        if len(tries) == 3:
            raise BrokenError
        return re.findall(r"\[\d\]", prompt.rpartition("Available Moves")[2])[0]

    builder = SelfPlayGroupBuilder(Table(TicTacToeMaker(list_moves=True), RENDERER), num_games=1, seed=0)
    group = run_fast(do_group_rollout(builder, Policy(reply), RetryOnFailure()))
    assert group.get_total_rewards() == [1.0, -1.0]
    assert [error.error_type for error in group.rollout_errors] == ["BrokenError"]


def test_what_a_seat_earns_by_its_place_is_taken_out():
    """The first of the free cells each time: O wins every game, and that says nothing about how it was played."""

    async def reply(prompt: str) -> str:
        return re.findall(r"\[\d\]", prompt.rpartition("Available Moves")[2])[0]

    for num_games, rewards in ((4, [0.0, 0.0] * 4), (3, [1.0, -1.0] * 3)):
        builder = SelfPlayGroupBuilder(Table(TicTacToeMaker(list_moves=True), RENDERER), num_games, seed=0)
        group = run_fast(do_group_rollout(builder, Policy(reply)))
        assert group.get_total_rewards() == rewards
        assert [trajectory.transitions[-1].reward for trajectory in group.trajectories_G] == [
            1.0,
            -1.0,
        ] * num_games


def test_a_group_that_is_cancelled_leaves_nothing_behind():
    async def hang(prompt: str) -> str:
        await asyncio.sleep(HANG_SECONDS)
        return ""

    async def cancelled() -> None:
        builder = SelfPlayGroupBuilder(Table(TicTacToeMaker(list_moves=True), RENDERER), num_games=8, seed=0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await do_group_rollout(builder, Policy(hang))

    run_fast(cancelled())


# --- a thousand games under faults

FAULTS = ("none", "none", "raises", "hangs", "late", "cancelled", "illegal", "stopped", "closed")


class FaultyGame:
    """One game in which each player may have one fault, at a turn drawn by lot."""

    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        self.num_players = self.rng.choice((2, 2, 3))
        race = GuessNumberMaker("train", self.num_players)
        self.game = TicTacToe(with_history=True) if self.num_players == 2 else race(seed)
        self.envs = seats(self.game)
        self.faults = [self.rng.choice(FAULTS) for _ in self.envs]

    async def run(self) -> list[Trajectory | BaseException]:
        tasks = [
            asyncio.create_task(self._rollout(env, fault))
            for env, fault in zip(self.envs, self.faults, strict=True)
        ]
        loop = asyncio.get_running_loop()
        for task, env, fault in zip(tasks, self.envs, self.faults, strict=True):
            if fault == "cancelled":
                loop.call_later(self.rng.uniform(0, 5), task.cancel)
            if fault == "closed":
                loop.call_later(self.rng.uniform(0, 5), env.coordinator.leave, env.seat, "closed")
        async with asyncio.timeout(50 * MOVE_SECONDS):
            return await asyncio.gather(*tasks, return_exceptions=True)

    async def _rollout(self, env: SeatEnv, fault: str) -> Trajectory:
        limits = RolloutLimits(
            sampling_turn_timeout_seconds=3 * MOVE_SECONDS, max_turns=2 if fault == "stopped" else None
        )
        return await run_rollout(Policy(self._reply(fault)), env, limits=limits)

    def _reply(self, fault: str):
        turns_left = self.rng.randrange(4)

        async def reply(prompt: str) -> str:
            nonlocal turns_left
            turns_left -= 1
            if turns_left < 0:
                if fault == "raises":
                    raise BrokenError
                if fault == "illegal":
                    return "I give up"
                if fault in ("hangs", "late"):
                    await asyncio.sleep(HANG_SECONDS if fault == "hangs" else 1.5 * MOVE_SECONDS)
            await asyncio.sleep(self.rng.random())
            return self.rng.choice(self.game.legal_moves())

        return reply


def test_a_thousand_games_under_faults_all_end():
    kinds: collections.Counter[str] = collections.Counter()

    async def games():
        for seed in range(1000):
            faulty = FaultyGame(seed)
            results = await faulty.run()
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, (seed, faulty.faults)
            ending = faulty.envs[0].coordinator.ending
            assert ending is not None, (seed, faulty.faults)
            assert ending.reason
            kinds[ending.kind] += 1
            if ending.kind != EndKind.FINISHED:
                assert ending.offender is not None
                assert faulty.faults[ending.offender] != "none", (seed, faulty.faults, ending)
            for fault, result in zip(faulty.faults, results, strict=True):
                if fault == "none":
                    assert isinstance(result, Trajectory), (seed, faulty.faults, result)
                    assert result.stop_reason is not None

    run_fast(games())
    assert set(kinds) == set(EndKind), kinds
    assert min(kinds.values()) > 30, kinds
