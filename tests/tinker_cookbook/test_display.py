"""Colours of tokens, datums and trajectories, with a tokenizer of bytes whose numbers past 255 are special."""

import re

import pytest
import tinker

from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.display import colorize_example, format_trajectory, to_ints
from tinker_cookbook.exceptions import DataValidationError
from tinker_cookbook.rl.types import Trajectory, Transition
from tinker_cookbook.utils.format_colorized import format_colorized, whole_characters

END = 256


class Bytes:
    def decode(self, token_ids: list[int]) -> str:
        parts = re.split(f"({chr(END)})", "".join(map(chr, token_ids)))
        return "".join(
            "<end>" if part == chr(END) else part.encode("latin-1").decode("utf-8", "replace")
            for part in parts
        )

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode()) + [END] * add_special_tokens


class Words:
    """As sentencepiece does, drops the space before the first word of what it is given."""

    def decode(self, token_ids: list[int]) -> str:
        return "".join(f" w{token}" for token in token_ids)[1:]


BYTES = Bytes()
COLOURS = {"31": "red", "32": "green", "33": "yellow"}


def spans(text: str) -> list[tuple[str, str]]:
    """[(colour, text), ...], neighbours of one colour joined and line feeds left out."""
    found: list[tuple[str, str]] = []
    for code, part in re.findall(r"\x1b\[(\d+)m(.*?)\x1b\[0m", text, flags=re.DOTALL):
        colour = COLOURS[code]
        if found and found[-1][0] == colour:
            found[-1] = (colour, found[-1][1] + part)
        else:
            found.append((colour, part))
    return found


def test_colours():
    text = format_colorized(list(b"abcd"), [-0.5, 0, 0, 2], BYTES)
    assert spans(text) == [("red", "a"), ("yellow", "bc"), ("green", "d")]


def test_texts_of_single_tokens_and_of_those_that_share_a_character():
    assert whole_characters([1, 2], Words()) == [(0, 1, "w1"), (1, 2, " w2")]
    assert whole_characters(list("aé€".encode()), BYTES) == [(0, 1, "a"), (1, 3, "é"), (3, 6, "€")]
    assert whole_characters(list(b"ab"), BYTES) == [(0, 1, "a"), (1, 2, "b")]
    assert whole_characters([], BYTES) == []


def test_characters_of_several_tokens_stay_whole():
    tokens = list("né😀".encode())
    text = format_colorized(tokens, [1, 0, 1, 0, 0, 1, -1], BYTES)
    assert spans(text) == [("green", "né"), ("red", "😀")]


def test_bytes_that_make_no_character_do_not_swallow_the_rest():
    tokens = [0xFF] * 20 + list(b"ok")
    assert spans(format_colorized(tokens, [0.0] * 21 + [1], BYTES))[-1] == ("green", "k")
    assert "ok" in re.sub(r"\x1b\[\d+m", "", format_colorized(tokens, [0.0] * 22, BYTES))


def test_spaces_between_words_of_different_colours():
    assert spans(format_colorized([1, 2, 3], [1, 0, -1], Words())) == [
        ("green", "w1"),
        ("yellow", " w2"),
        ("red", " w3"),
    ]


def test_special_tokens_are_visible_and_controls_harmless():
    shown = spans(format_colorized([*b"\x1b[2Ja\r", END], [0] * 7, BYTES))
    assert shown == [("yellow", "␛[2Ja␍<end>")]


def test_line_feeds():
    assert format_colorized(list(b"a\nb"), [1, 1, 1], BYTES) == "\x1b[32ma\x1b[0m\n\x1b[32mb\x1b[0m"
    assert "a↵\x1b[0m\n" in format_colorized(list(b"a\nb"), [1, 1, 1], BYTES, draw_newline_arrow=True)


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="3 tokens"):
        format_colorized([1, 2, 3], [1.0], BYTES)


def test_nothing():
    assert format_colorized([], [], BYTES) == ""


# --- datums


def datum(chunks: list[tinker.ModelInputChunk], targets: list[int], **values: list[float]) -> tinker.Datum:
    inputs = {key: tinker.TensorData(data=value, dtype="float32") for key, value in values.items()}
    inputs["target_tokens"] = tinker.TensorData(data=targets, dtype="int64")
    return tinker.Datum(model_input=tinker.ModelInput(chunks=chunks), loss_fn_inputs=inputs)


def text_chunk(text: str) -> tinker.EncodedTextChunk:
    return tinker.EncodedTextChunk(tokens=list(text.encode()))


def test_each_token_has_the_weight_of_its_own_prediction():
    shown = colorize_example(datum([text_chunk("Q: ye")], list(b": yes"), weights=[0, 0, 1, 1, 1]), BYTES)
    assert spans(shown) == [("yellow", "Q: "), ("green", "yes")]


def test_another_key():
    shown = colorize_example(
        datum([text_chunk("ab")], list(b"bc"), advantages=[-1, 2]), BYTES, key="advantages"
    )
    assert spans(shown) == [("yellow", "a"), ("red", "b"), ("green", "c")]


def test_an_image_stands_as_a_placeholder():
    image = tinker.types.ImageChunk(data=b"", format="png", expected_tokens=3)
    chunks = [text_chunk("ab"), image, text_chunk("cd")]
    shown = colorize_example(datum(chunks, [98, 0, 0, 0, 99, 100, 101], weights=[0, 9, 9, 9, 0, 1, 1]), BYTES)
    assert spans(shown) == [("yellow", "ab<image>c"), ("green", "de")]
    assert to_ints(image, BYTES) == list(b"<image>")


def test_datums_that_cannot_be_shown():
    with pytest.raises(DataValidationError, match="it has target_tokens, weights"):
        colorize_example(datum([text_chunk("a")], [98], weights=[1]), BYTES, key="advantages")
    with pytest.raises(DataValidationError, match="2 positions, 1 targets, 1 values"):
        colorize_example(datum([text_chunk("ab")], [98], weights=[1]), BYTES)


# --- trajectories


def transition(ob: str, ac: str, reward: float, **rest) -> Transition:
    return Transition(
        ob=tinker.ModelInput(chunks=[text_chunk(ob)]),
        ac=TokensWithLogprobs(tokens=list(ac.encode()), maybe_logprobs=None),
        reward=reward,
        **rest,
    )


def trajectory() -> Trajectory:
    steps = [
        transition("What is 1+1?", "three", -1.0, episode_done=False, metrics={"format": 1}),
        transition("What is 1+1?threeNo.", "two", 0.5, episode_done=True, logs={"note": "good"}),
    ]
    return Trajectory(steps, tinker.ModelInput(chunks=[text_chunk("Fresh.")]), stop_reason="completed")


def test_a_trajectory_shows_everything_once():
    text = format_trajectory(trajectory(), BYTES)
    for part in (
        "What is 1+1?",
        "three",
        "No.",
        "two",
        "reward -1 ",
        "format: 1",
        "note: good",
        "Fresh.",
        "completed",
    ):
        assert text.count(part) == 1, part
    assert "reward 0.5, episode done" in text


def test_the_last_transition_has_its_whole_observation():
    text = format_trajectory(trajectory(), BYTES, only_last_transition=True)
    assert "What is 1+1?threeNo." in text
    assert "step 0" not in text


def test_a_trajectory_without_transitions():
    empty = Trajectory([], tinker.ModelInput(chunks=[]), stop_reason="context_overflow")
    assert format_trajectory(empty, BYTES) == "stopped: context_overflow"
