"""Every opponent, in both seats, on the engine."""

import asyncio
import pickle
from typing import Any

import pytest

from tinker_cookbook.completers import TinkerTokenCompleter
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.launch import TINY_MODEL
from tinker_cookbook.recipes.multiplayer_rl.groups import SelfPlayGroupBuilder, VersusGroupBuilder
from tinker_cookbook.recipes.multiplayer_rl.match import Result, play_match, wilson
from tinker_cookbook.recipes.multiplayer_rl.opponents import (
    League,
    ModelSettings,
    OptimalOpponent,
    RandomOpponent,
    opponent_by_name,
)
from tinker_cookbook.recipes.multiplayer_rl.text_arena.env import TwoPlayerDatasetBuilder
from tinker_cookbook.recipes.multiplayer_rl.text_arena.tic_tac_toe import TicTacToeMaker
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.service import connect
from tinker_cookbook.tokenizer_utils import get_tokenizer


def builder(**settings) -> TwoPlayerDatasetBuilder:
    return TwoPlayerDatasetBuilder(
        **{
            "model_name_for_tokenizer": TINY_MODEL,
            "renderer_name": "chatml",
            "group_size": 2,
            "random_plies": 0,
            **settings,
        }
    )


def models() -> ModelSettings:
    renderer = get_renderer("chatml", get_tokenizer(TINY_MODEL), model_name=TINY_MODEL)
    return ModelSettings(TINY_MODEL, renderer, max_tokens=16)


@pytest.fixture
def checkpoint(engine):
    """Weights to sample from, as a run saves them."""
    client = connect().create_lora_training_client(base_model=TINY_MODEL, rank=4, seed=0)
    return client.save_weights_for_sampler("league").result().path


@pytest.fixture
def log_path(tmp_path, checkpoint):
    (tmp_path / "checkpoints.jsonl").write_text(
        f'{{"name": "000001", "batch": 1, "sampler_path": "{checkpoint}"}}\n{{"name": "000002", "batch": 2}}\n'
    )
    return str(tmp_path)


def test_every_opponent_in_both_seats(engine, checkpoint, log_path):
    names = ("random", "optimal", "base_model", "league", checkpoint)

    async def groups():
        train, _ = await builder(opponents=names, batch_size=2 * len(names), log_path=log_path)()
        policy = TinkerTokenCompleter((await models().opponent("base_model")).sampling_client, 16, seed=0)
        batch = pickle.loads(pickle.dumps(train.get_batch(0)))
        return batch, await asyncio.gather(*(do_group_rollout(group, policy) for group in batch))

    batch, played = asyncio.run(groups())
    assert [(group.opponent.name, group.seat) for group in batch] == [
        (name, seat) for seat in (0, 1) for name in names
    ]
    for group in played:
        for trajectory in group.trajectories_G:
            assert trajectory.stop_reason in ("finished", "illegal_move", "other_illegal_move")
    optimal = [
        group for builder, group in zip(batch, played, strict=True) if builder.opponent.name == "optimal"
    ]
    assert all(reward <= 0 for group in optimal for reward in group.get_total_rewards())


def test_a_league_has_the_base_model_and_the_last_checkpoints(engine, checkpoint, log_path):
    league = League(models(), log_path, size=3)
    assert league.past() == ["base_model", checkpoint]
    assert League(models(), log_path + "/none", size=3).past() == ["base_model"]


def test_self_play_is_a_group_of_both_seats(engine):
    train, test = asyncio.run(builder(group_size=4, test_games=3)())
    assert test is not None
    tests: Any = test.get_batch(0)
    (group, *_) = train.get_batch(0)
    assert isinstance(group, SelfPlayGroupBuilder)
    assert group.members_play_together
    assert group.num_games == 2
    assert {type(each) for each in tests} == {VersusGroupBuilder}
    tested = [(each.opponent.name, each.seat) for each in tests]
    assert sorted(tested) == sorted(
        [("random", 0), ("random", 1), ("random", 0), ("optimal", 0), ("optimal", 1), ("optimal", 0)]
    )


def test_the_same_batch_again(engine):
    train, _ = asyncio.run(builder()())
    assert train.get_batch(1) == train.get_batch(1)
    assert train.get_batch(0) != train.get_batch(1)
    with pytest.raises(IndexError):
        train.get_batch(len(train))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"opponents": ("self_play", "random")}, "goes with no other"),
        ({"group_size": 3}, "multiple of the 2 players"),
        ({"move_seconds": 0.0}, "nobody waits for ever"),
        ({"n_batches": 0}, "at least 1"),
    ],
)
def test_settings_that_cannot_be(settings, words):
    with pytest.raises(ConfigurationError, match=words):
        builder(**settings)


def test_an_opponent_that_there_is_not():
    with pytest.raises(ConfigurationError, match="random, optimal, base_model"):
        asyncio.run(opponent_by_name("stockfish", models()))
    with pytest.raises(ConfigurationError, match="log_path"):
        asyncio.run(opponent_by_name("league", models()))


# --- matches


def test_matches_of_known_players():
    async def matches():
        best, lot = OptimalOpponent(), RandomOpponent()
        draws = await play_match(TicTacToeMaker(), best, best, 20)
        against = await play_match(TicTacToeMaker(), best, lot, 60, seed=1)
        again = await play_match(TicTacToeMaker(), best, lot, 60, seed=1)
        second = await play_match(TicTacToeMaker(), lot, best, 60)
        return draws, against, again, second

    draws, against, again, second = asyncio.run(matches())
    assert draws == (Result(0, 20, 0, 0), Result(0, 20, 0, 0))
    assert against == again
    assert against[0].losses == second[1].losses == 0
    assert against[0].wins > 50
    assert (against[0].wins, against[0].draws) == (against[1].losses, against[1].draws)


@pytest.mark.parametrize(
    ("hits", "trials", "interval"),
    [(0, 10, (0.0, 0.2775)), (5, 10, (0.2366, 0.7634)), (10, 10, (0.7225, 1.0)), (0, 0, (0.0, 1.0))],
)
def test_intervals_after_wilson(hits, trials, interval):
    assert wilson(hits, trials) == pytest.approx(interval, abs=1e-4)
