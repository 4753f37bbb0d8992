import asyncio
import io
import sys

import pytest
import tinker

from tests.tinker_cookbook.rl.tiny import END, MODEL, text_of, tokens_of
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.rl import play_w_env
from tinker_cookbook.rl.env_names import dataset_builder_by_name
from tinker_cookbook.rl.play_w_env import ManualPolicy, get_async_input
from tinker_cookbook.tasks import get_task
from tinker_cookbook.tokenizer_utils import get_tokenizer

STOP = tokens_of(END)


def typing(monkeypatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def act(text: str = "prompt", **options):
    policy = ManualPolicy(get_tokenizer(MODEL), multiline=False)
    return asyncio.run(policy(tinker.ModelInput.from_ints(tokens_of(text)), STOP, **options))


def test_input_of_several_lines_ends_with_two_empty_ones_or_with_the_input(monkeypatch):
    typing(monkeypatch, "one\n\ntwo\n\n\nthree")
    assert asyncio.run(get_async_input("", multiline=True)) == "one\n\ntwo"
    assert asyncio.run(get_async_input("", multiline=True)) == "three"
    with pytest.raises(EOFError):
        asyncio.run(get_async_input("", multiline=True))


def test_what_is_typed_are_tokens_with_their_end(monkeypatch, capsys):
    typing(monkeypatch, f"<think>x</think>7\n7{END}\n")
    said = act("What is 3 + 4?")
    assert said.tokens == tokens_of(f"<think>x</think>7{END}")
    assert (said.maybe_logprobs, said.stop_reason) == (None, "stop")
    assert "What is 3 + 4?" in capsys.readouterr().out
    assert act().tokens == tokens_of(f"7{END}")


def test_what_is_typed_can_be_too_long(monkeypatch):
    typing(monkeypatch, "123456\n")
    said = act(max_tokens=3)
    assert (text_of(said.tokens), said.stop_reason) == ("123", "length")


def command(monkeypatch, typed: str, *arguments: str) -> None:
    typing(monkeypatch, typed)
    monkeypatch.setattr(sys, "argv", ["play_w_env", *arguments])
    asyncio.run(play_w_env.main())


def test_a_game_is_played_in_the_terminal(monkeypatch, capsys):
    number = get_task("guess_number").problem("train", 3).number  # pyright: ignore[reportAttributeAccessIssue]
    wrong = 1 if number != 1 else 2
    command(monkeypatch, f"Guess: {wrong}\nGuess: {number}\n", "env=guess_number", "index=3")
    out = capsys.readouterr().out
    assert "turn 1: reward 0" in out
    assert "correct=1.0" in out
    assert "total reward 1 in 2 turns" in out
    assert out.count("umber") == 1, "what was seen is not shown again"


def test_an_env_of_ones_own_is_played(monkeypatch, capsys):
    env = "tinker_cookbook.recipes.custom_env.env:MyDatasetBuilder"
    command(monkeypatch, "nothing at all\n", f"env={env}")
    assert "total reward 0 in 1 turns" in capsys.readouterr().out


def test_an_input_that_ends_is_said(monkeypatch):
    with pytest.raises(ConfigurationError, match="the input ended"):
        command(monkeypatch, "", "env=arithmetic")


# --- names ------------------------------------------------------------------------------------------------

SETTINGS = {"model_name_for_tokenizer": MODEL, "renderer_name": "chatml", "seed": 3, "unknown_to_all": 1}


def test_a_builder_is_given_the_settings_it_has_fields_for():
    for env in ("sort", "tinker_cookbook.recipes.custom_env.env:MyDatasetBuilder"):
        assert getattr(dataset_builder_by_name(env, SETTINGS), "seed", None) == 3


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("sums", "there is no env 'sums'.*arithmetic"),
        ("no_such_module:Builder", "no_such_module"),
        ("tinker_cookbook.tasks:Nothing", "Nothing"),
        ("tinker_cookbook.tasks:get_task", "no RLDatasetBuilder"),
        ("tinker_cookbook.rl.interleaved:InterleavedRLDatasetBuilder", "cannot be made"),
    ],
)
def test_a_name_that_is_none_is_said(env, words):
    with pytest.raises(ConfigurationError, match=words):
        dataset_builder_by_name(env, SETTINGS)
