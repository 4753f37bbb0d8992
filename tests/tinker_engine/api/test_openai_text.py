"""Tokens → text and text → parts, on every way of cutting them up."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinker_engine.api.openai.backend import Delta
from tinker_engine.api.openai.reply import Parts, Reply, parse_call
from tinker_engine.api.openai.text import AnswerText, ScoredToken

END = 256  # above the bytes, which are the other tokens here


def token_bytes(token: int) -> bytes:
    return bytes([token]) if token < END else b"<end>"


def make_delta(tokens: list[int], finish_reason: Any = None, index: int = 0) -> Delta:
    return Delta(index, tokens, [-float(token) for token in tokens], None, finish_reason)


def show(
    data: bytes, cuts: list[int], stops: list[str], finish: str = "length"
) -> tuple[list[str], list[ScoredToken]]:
    """What is shown, delta by delta, of `data` cut at these places."""
    text = AnswerText(token_bytes, [END], stops)
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    shown = [text.add(make_delta(list(data[a:b]))) for a, b in itertools.pairwise(places)]
    last = text.add(make_delta([END] if finish == "stop" else [], finish))
    return [part.text for part in [*shown, last]], [token for part in [*shown, last] for token in part.tokens]


cuts = st.lists(st.integers(0, 60), max_size=12)
short_text = st.text(alphabet="ab<|é😀", max_size=20)
stop_lists = st.lists(st.text(alphabet="ab<|é😀", min_size=1, max_size=4), max_size=3)


@given(short_text, cuts, stop_lists, st.sampled_from(["stop", "length"]))
def test_the_text_up_to_the_first_stop_is_shown(text: str, cuts: list[int], stops: list[str], finish: str):
    # The engine ends a sample with the token that completes a stop: here with the first byte that does.
    data = text.encode()
    ends = [n for n in range(len(data) + 1) if any(stop.encode() in data[:n] for stop in stops)]
    sampled = data[: ends[0]] if ends else data
    starts = [place for stop in stops if (place := sampled.find(stop.encode())) >= 0]
    expected = sampled[: min(starts)] if starts else sampled
    pieces, tokens = show(sampled, cuts, stops, finish)
    assert "".join(pieces) == expected.decode()  # which would fail on half a character
    assert [token.token for token in tokens] == list(expected)
    assert "�" not in "".join(pieces)
    for stop in stops:
        assert stop not in "".join(pieces)


@given(st.binary(max_size=20), cuts)
def test_bytes_that_are_no_text_become_replacements(data: bytes, cuts: list[int]):
    pieces, tokens = show(data, cuts, [])
    assert "".join(pieces) == data.decode(errors="replace")
    assert len(tokens) == len(data)


def test_half_a_character_waits_for_its_other_half():
    assert show("é😀".encode(), [1, 2, 3, 5], [])[0] == ["", "é", "", "", "😀", ""]


def test_what_may_become_a_stop_waits():
    assert show(b"one sto two", [1, 5, 7, 8], ["stop"])[0] == ["o", "ne ", "", "sto ", "two", ""]


def test_the_end_token_is_no_text_even_with_its_reason_in_a_later_delta():
    text = AnswerText(token_bytes, [END], [])
    assert text.add(make_delta([*b"hi", END])).text == "hi"
    assert text.add(make_delta([], "stop")).text == ""


def test_offsets_count_characters():
    _, tokens = show("é😀b".encode(), [], [])
    assert [token.offset for token in tokens] == [0, 0, 1, 1, 1, 1, 2]


# --- reply ------------------------------------------------------------------------------------

CALL = '<tool_call>{"name": "f", "arguments": {"x": "é"}}</tool_call>'


def read(text: str, cuts: list[int] = [], *, with_tools: bool = True) -> Parts:  # noqa: B006
    reply = Reply(with_tools=with_tools)
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    whole = Parts()
    for a, b in itertools.pairwise(places):
        whole.add(reply.add(text[a:b], last=False))
    whole.add(reply.add("", last=True))
    return whole


def summary(parts: Parts) -> tuple[str, str, list[tuple[str, str]]]:
    return parts.reasoning, parts.content, [(call.name, call.arguments) for call in parts.tool_calls]


F = ("f", '{"x": "é"}')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ("", "", [])),
        ("plain text \n", ("", "plain text \n", [])),
        (CALL, ("", "", [F])),
        (f"I call:\n{CALL}\n{CALL}\n", ("", "I call:", [F, F])),
        (f"{CALL} and then", ("", " and then", [F])),
        (f"<think>2 + 2</think>4 {CALL}", ("2 + 2", "4", [F])),
        ("<think></think>4", ("", "4", [])),
        ("<think>never closed", ("", "<think>never closed", [])),
        ("so <think>late</think>", ("", "so <think>late</think>", [])),
        ("<thin", ("", "<thin", [])),
        ("a <tool_cal", ("", "a <tool_cal", [])),
        ("a <tool_call>{", ("", "a <tool_call>{", [])),
        ("<tool_call>{]</tool_call>x", ("", "<tool_call>{]</tool_call>x", [])),
        (f"<tool_call>{{}}</tool_call> {CALL}", ("", "<tool_call>{}</tool_call>", [F])),
        ("</tool_call>", ("", "</tool_call>", [])),
    ],
)
def test_the_parts_of_a_reply(text: str, expected: tuple[str, str, list[tuple[str, str]]]):
    assert summary(read(text)) == expected
    assert summary(read(text, list(range(len(text))))) == expected


def test_without_tools_a_call_is_text():
    assert summary(read(f"<think>a</think> {CALL}", with_tools=False)) == ("a", f" {CALL}", [])


pieces = st.sampled_from(
    ["<think>", "</think>", "<tool_call>", "</tool_call>", CALL, "{}", " ", "\n", "word", "<", "<tool_", "é"]
)


@given(st.lists(pieces, max_size=8).map("".join), cuts, st.booleans())
def test_how_a_reply_comes_makes_no_difference(text: str, cuts: list[int], with_tools: bool):
    assert summary(read(text, cuts, with_tools=with_tools)) == summary(read(text, with_tools=with_tools))


@pytest.mark.parametrize(
    "written",
    [
        "",
        "3",
        '{"name": "f"}',
        '{"name": 3, "arguments": {}}',
        '{"name": "f", "arguments": "{}"}',
        '{"name": "f", "arguments": {}, "more": 1}',
        '{"name": "f", "arguments": {"x": NaN}}',
        "[" * 100_000,
    ],
)
def test_no_call(written: str):
    assert parse_call(written) is None


def test_calls_have_their_own_ids():
    first, second = read(CALL + CALL).tool_calls
    assert first.id != second.id
