"""The rules, and that the games are told in the words that the tiny model was taught."""

import functools
import itertools
import random
from typing import Any

import pytest

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.multiplayer_rl.game import Game, IllegalMoveError
from tinker_cookbook.recipes.multiplayer_rl.guess_number.env import GuessNumber, GuessNumberMaker
from tinker_cookbook.recipes.multiplayer_rl.text_arena.tic_tac_toe import (
    TicTacToe,
    TicTacToeMaker,
    best_cells,
)
from tinker_cookbook.recipes.multiplayer_rl.twenty_questions.env import (
    TwentyQuestions,
    TwentyQuestionsDatasetBuilder,
    TwentyQuestionsMaker,
)
from tinker_cookbook.tasks.guess_number import PHRASINGS, Hidden
from tinker_cookbook.tasks.tictactoe import (
    EMPTY,
    INTROS,
    Position,
    free_cells,
    is_over,
    observation,
    placed,
    winner,
)
from tinker_cookbook.tasks.twenty_questions import OPENINGS, SECRETS, THINGS, Answering, Asking


def conversation(game: Game, moves: list[str]) -> dict[int, list]:
    """What each player has read and written when these moves were made."""
    told: dict[int, list] = {player: [] for player in range(game.num_players)}
    for move in moves:
        mover = game.to_move
        told[mover] += [*game.news(mover), {"role": "assistant", "content": move}]
        game.play(move)
    if game.ending is None:
        told[game.to_move] += game.news(game.to_move)
    return told


# --- tic-tac-toe


@pytest.mark.parametrize("moves", [(), (4,), (4, 0), (4, 0, 8), (0, 1, 2, 3, 5)])
def test_tic_tac_toe_is_told_as_the_model_was_taught_it(moves):
    for list_moves in (False, True):
        game = TicTacToe(with_history=True, list_moves=list_moves)
        told = conversation(game, [f"[{cell}]" for cell in moves])
        assert told[game.to_move] == Position(moves, INTROS[1], True, list_moves).prompt
        alone = TicTacToe(list_moves=list_moves, board=game.board)
        assert alone.forgets(0)
        assert alone.news(alone.to_move) == Position(moves, INTROS[1], False, list_moves).prompt


def test_games_of_a_seed_begin_alike_and_go_on():
    boards = [TicTacToeMaker(random_plies=8)(seed).board for seed in range(200)]
    assert boards == [TicTacToeMaker(random_plies=8)(seed).board for seed in range(200)]
    assert not any(is_over(board) for board in boards)
    assert {sum(map(bool, board)) for board in boards} == set(range(9))
    assert TicTacToeMaker()(0).board == EMPTY


def test_threats_are_told_before_the_board():
    game = TicTacToe(list_threats=True, board=("O", "O", "", "X", "X", "", "", "", ""))
    (told,) = game.news(0)
    intro = INTROS[1].format(mark="O")
    threats = "O wins with [2].\n\nX wins with [5].\n\n"
    assert told["content"] == intro + threats + observation(game.board, list_moves=False)
    assert TicTacToe(list_threats=True).news(0) == TicTacToe().news(0)


def test_three_in_a_row_wins_and_a_full_board_is_a_draw():
    game = TicTacToe()
    conversation(game, ["[0]", "[3]", "[1]", "[4]", "[2]"])
    assert game.ending is not None
    assert game.ending.scores == (1.0, -1.0)
    game = TicTacToe()
    conversation(game, [f"[{cell}]" for cell in (0, 1, 2, 4, 3, 5, 7, 6, 8)])
    assert game.ending is not None
    assert game.ending.drawn(0)
    assert game.ending.drawn(1)


@pytest.mark.parametrize("move", ["4", "", "[9]", "[0]", "[x]"])
def test_what_is_no_move_is_illegal(move):
    game = TicTacToe()
    game.play("[0]")
    with pytest.raises(IllegalMoveError):
        game.play(move)


def test_minimax_never_loses_and_draws_against_itself():
    """Every answer to it is tried: from each position in which it moves, none that it leads to is lost."""
    mark_of = {0: "O", 1: "X"}

    @functools.cache
    def outcomes(board, own: int, both_best: bool) -> set[str | None]:
        if is_over(board):
            return {winner(board)}
        mover = board.count("O") != board.count("X")
        cells = best_cells(board) if both_best or mover == own else free_cells(board)
        return set(itertools.chain.from_iterable(outcomes(placed(board, c), own, both_best) for c in cells))

    assert outcomes(EMPTY, 0, both_best=True) == {None}
    for own in (0, 1):
        assert mark_of[1 - own] not in outcomes(EMPTY, own, both_best=False)


# --- guess the number


def test_a_number_is_hidden_as_the_model_was_taught_it():
    hidden = Hidden(7, 20, PHRASINGS[0])
    told = conversation(GuessNumber(hidden), ["Guess: 10", "Guess: 5"])
    heard = [hidden.respond(replies) for replies in (["Guess: 10"], ["Guess: 10", "Guess: 5"])]
    assert told[0] == [
        *hidden.prompt,
        {"role": "assistant", "content": "Guess: 10"},
        heard[0],
        {"role": "assistant", "content": "Guess: 5"},
        heard[1],
    ]
    assert all(message["role"] in ("user", "assistant") for message in told[0])


def test_guesses_end_with_the_number_or_when_there_are_no_more():
    game = GuessNumber(Hidden(7, 20, PHRASINGS[0], max_guesses=2))
    conversation(game, ["Guess: 1", "Guess: 7"])
    assert game.ending is not None
    assert game.ending.scores == (1.0,)
    game = GuessNumber(Hidden(7, 20, PHRASINGS[0], max_guesses=2))
    conversation(game, ["Guess: 1", "Guess: 2"])
    assert game.ending is not None
    assert game.ending.scores == (0.0,)
    with pytest.raises(IllegalMoveError):
        GuessNumber(Hidden(7, 20, PHRASINGS[0])).play("7")


def test_bisection_finds_every_number_it_can():
    for number in range(1, 64):
        game = GuessNumber(Hidden(number, 63, PHRASINGS[0]))
        while game.ending is None:
            game.play(game.best_moves()[0])
        assert game.ending.won(0), number


def test_in_a_race_everybody_hears_everybody_and_one_wins():
    game = GuessNumber(Hidden(7, 20, PHRASINGS[0]), num_players=3)
    told = conversation(game, ["Guess: 10", "Guess: 5", "Guess: 8", "Guess: 6"])
    opening = PHRASINGS[0].format(top=20)
    assert [message["content"] for message in told[1]] == [
        f"{opening}\nPlayer 1 guessed 10: Lower.",
        "Guess: 5",
        "Higher.\nPlayer 3 guessed 8: Lower.\nPlayer 1 guessed 6: Higher.",
    ]
    game.play("Guess: 7")
    assert game.ending is not None
    assert game.ending.scores == (-1.0, 1.0, -1.0)


def test_numbers_to_test_on_are_none_to_train_on():
    drawn = {
        split: {GuessNumberMaker(split)(seed).hidden.key for seed in range(300)}
        for split in ("train", "test")
    }
    assert drawn["test"]
    assert not drawn["train"] & drawn["test"]


# --- twenty questions


def test_questions_are_asked_and_answered_as_the_model_was_taught():
    asking = Asking("owl", OPENINGS[0])
    game = TwentyQuestions(asking)
    told = conversation(game, ["Can it fly?", "yes, it can", "Is it a car?", "Hm.", "Guess: owl"])
    assert [message["content"] for message in told[0]] == [
        *[message["content"] for message in asking.prompt],
        "Can it fly?",
        "Yes.",
        "Is it a car?",
        "Please ask a yes or no question.",
        "Guess: owl",
    ]
    assert told[1][:2] == Answering("owl", SECRETS[0], "Can it fly?").prompt
    assert game.forgets(1), "the answerer reads the last question and no other"
    assert game.ending is not None
    assert game.ending.scores == (1.0, 1.0)


def test_the_table_answers_truly_and_its_asker_finds_the_thing():
    found = 0
    for seed in range(20):
        game = TwentyQuestionsMaker(tuple(THINGS))(seed)
        while game.ending is None:
            game.play(random.Random(seed).choice(game.best_moves()))
        found += game.ending.won(0)
    assert found >= 8


def test_the_last_turn_ends_it_and_a_wrong_guess_too():
    game = TwentyQuestions(Asking("owl", OPENINGS[0], max_turns=2))
    conversation(game, ["Can it fly?", "Yes.", "Is it big?"])
    assert game.ending is not None
    assert game.ending.scores == (0.0, 0.0)
    game = TwentyQuestions(Asking("owl", OPENINGS[0]))
    game.play("Guess: dog")
    assert game.ending is not None
    assert game.ending.scores == (0.0, 0.0)


def test_things_of_a_file(tmp_path):
    path = tmp_path / "things.txt"
    path.write_text("\n".join(f"thing{number}" for number in range(20)))
    builder = TwentyQuestionsDatasetBuilder(
        model_name_for_tokenizer="m", renderer_name="chatml", things_file=str(path)
    )
    train: Any = builder.maker("train")
    test: Any = builder.maker("test")
    assert len(train.things) == 16
    assert len(test.things) == 4
    assert not set(train.things) & set(test.things)
    game = train(seed=0)
    game.play("Is it big?")
    with pytest.raises(ConfigurationError, match="has to be a model"):
        game.best_moves()
