"""Games of the package, where it is installed; and what is said where it is not."""

import importlib
import random
import socket
import sys

import pytest

from tests.tinker_cookbook.recipes.multiplayer_rl.fakes import Policy, bytes_renderer, run_fast
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.multiplayer_rl.game import Game, IllegalMoveError
from tinker_cookbook.recipes.multiplayer_rl.groups import SelfPlayGroupBuilder, Table
from tinker_cookbook.recipes.multiplayer_rl.text_arena.text_arena_game import TextArenaMaker
from tinker_cookbook.renderers.messages import get_text_content
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollouts import do_group_rollout


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "textarena", None)
    with pytest.raises(ConfigurationError, match=r"open-tinker-cookbook\[games\]"):
        TextArenaMaker("TicTacToe-v0")(seed=0)


@pytest.fixture
def package(monkeypatch):
    pytest.importorskip("textarena")

    def refuse(*_: object, **__: object):
        raise AssertionError("a game went to the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def told(game: Game, player: int) -> str:
    (message,) = game.news(player)
    assert message["role"] == "user"
    return get_text_content(message)


def test_tic_tac_toe_of_the_package(package):
    game = TextArenaMaker("TicTacToe-v0")(seed=0)
    first = told(game, 0)
    assert "You are Player 0 in Tic Tac Toe" in first
    assert first.endswith("'[8]'")
    game.play("[4]")
    second = told(game, 1)
    assert "[Player 0] [4]" in second
    assert second.count("Current Board") == 1, "boards of the past are left out"
    game.play("I take [0]")
    third = told(game, 0)
    assert "[Player 1] I take [0]" in third
    assert "[Player 0]" not in third, "what a player wrote is not told to it again"
    assert (
        set(game.best_moves()) <= set(game.legal_moves()) == {f"[{cell}]" for cell in (1, 2, 3, 5, 6, 7, 8)}
    )
    with pytest.raises(IllegalMoveError, match="occupied"):
        game.play("[4]")


def test_a_group_plays_a_game_of_the_package(package):
    rng = random.Random(0)

    async def reply(prompt: str) -> str:
        listed = prompt.rpartition("Available Moves: ")[2]
        return rng.choice([part.strip("'\0") for part in listed.split(", ")])

    builder = SelfPlayGroupBuilder(
        Table(TextArenaMaker("TicTacToe-v0"), bytes_renderer()), num_games=3, seed=0
    )
    group = run_fast(do_group_rollout(builder, Policy(reply)))
    for first, second in zip(group.trajectories_G[::2], group.trajectories_G[1::2], strict=True):
        assert first.stop_reason == second.stop_reason == "finished"
        assert first.transitions[-1].reward == -second.transitions[-1].reward
        (datum,) = trajectory_to_data(first, 1.0)
        assert sum(datum.loss_fn_inputs["mask"].data) == 4 * len(first.transitions), (
            "[4] and its end, each turn"
        )


def test_the_first_illegal_move_ends_it_and_a_row_wins(package):
    game = TextArenaMaker("TicTacToe-v0")(seed=0)
    with pytest.raises(IllegalMoveError):
        game.play("no idea")
    game = TextArenaMaker("TicTacToe-v0")(seed=0)
    for cell in (0, 3, 1, 4, 2):
        assert game.ending is None
        game.play(f"[{cell}]")
    assert game.ending is not None
    assert game.ending.scores == (1.0, -1.0)


@pytest.mark.parametrize(
    "name", ["Othello-v0-tiny", "Crusade-v0", "UltimateTicTacToe-v0", "Nim-v0", "KuhnPoker-v0"]
)
def test_games_can_be_set_up_and_two_seeds_do_not_mix(package, name):
    state = random.getstate()
    game, same = TextArenaMaker(name)(seed=3), TextArenaMaker(name)(seed=3)
    assert game.news(game.to_move) == same.news(same.to_move)
    assert random.getstate() == state, "the random numbers of the process are left alone"


def test_a_random_player_plays_games_that_list_their_moves(package):
    rng = random.Random(0)
    game = TextArenaMaker("Othello-v0-tiny")(seed=0)
    for _ in range(6):
        game.play(rng.choice(game.legal_moves()))
        if game.ending is not None:
            break
    with pytest.raises(ConfigurationError, match="no optimal player"):
        game.best_moves()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("TicTacTo-v0", "near to it: TicTacToe-v0"),
        ("ThreePlayerTicTacToe-v0", "two players"),
        ("DontSayIt-v0", "nltk.downloader words"),
    ],
)
def test_games_that_cannot_be_set_up(package, name, words, monkeypatch):
    nltk = importlib.import_module("nltk")
    monkeypatch.setattr(nltk.data, "path", [])
    with pytest.raises(ConfigurationError, match=words):
        TextArenaMaker(name)(seed=0)
