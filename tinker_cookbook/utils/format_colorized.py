"""Tokens as text in colours that show their weights."""

from collections.abc import Iterator
from itertools import groupby

from rich.color import ColorSystem
from rich.style import Style

from tinker_cookbook.tokenizer_utils import Tokenizer

_MAX_PIECE = 8
"""Tokens that may share one character: UTF-8 has four bytes at most, and two characters can hang together."""
_BROKEN = "\ufffd"
CONTROL_PICTURES = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"}


def format_colorized(
    tokens: list[int], weights: list[float], tokenizer: Tokenizer, draw_newline_arrow: bool = False
) -> str:
    """Red for weights below zero, yellow for zero, green above: text with ANSI codes, for a terminal.

    A character made of several tokens has the colour of the last one, which completes it. Control characters are shown
    as symbols, so that sampled text cannot steer the terminal.
    """
    if len(tokens) != len(weights):
        raise ValueError(
            f"{len(tokens)} tokens cannot be coloured by {len(weights)} weights; give one for each token"
        )
    pieces = [(_colour(weights[end - 1]), start, end) for start, end in _pieces(tokens, tokenizer)]
    runs = [(colour, list(run)) for colour, run in groupby(pieces, key=lambda piece: piece[0])]
    shown, before = [], 0
    for colour, run in runs:
        start, end = run[0][1], run[-1][2]
        shown.append(_paint(_text(tokens, before, start, end, tokenizer), colour, draw_newline_arrow))
        before = run[-1][1]  # the last piece of a run is the context of the next
    return "".join(shown)


def whole_characters(tokens: list[int], tokenizer: Tokenizer) -> list[tuple[int, int, str]]:
    """(start, end, text) of the shortest runs of tokens that can be read by themselves; mostly of one token each."""
    singles = {token: tokenizer.decode([token]) for token in set(tokens)}
    if "".join(singles[token] for token in tokens) == tokenizer.decode(tokens):  # many times faster
        return [(place, place + 1, singles[token]) for place, token in enumerate(tokens)]
    found, before = [], 0
    for start, end in _pieces(tokens, tokenizer):
        found.append((start, end, _text(tokens, before, start, end, tokenizer)))
        before = start
    return found


def _colour(weight: float) -> str:
    return "red" if weight < 0 else "green" if weight > 0 else "yellow"


def _pieces(tokens: list[int], tokenizer: Tokenizer) -> Iterator[tuple[int, int]]:
    """Runs of tokens that make whole characters. Bytes that never make one are given up a token at a time."""
    start = 0
    while start < len(tokens):
        ends = range(start + 1, min(start + _MAX_PIECE, len(tokens)) + 1)
        whole = (end for end in ends if not tokenizer.decode(tokens[start:end]).endswith(_BROKEN))
        end = next(whole, start + 1)
        yield start, end
        start = end


def _text(tokens: list[int], before: int, start: int, end: int, tokenizer: Tokenizer) -> str:
    """What tokens[start:end] add to those before; alone, some tokenizers drop the space before a word."""
    prefix, whole = tokenizer.decode(tokens[before:start]), tokenizer.decode(tokens[before:end])
    return (
        whole[len(prefix) :]
        if start > before and whole.startswith(prefix)
        else tokenizer.decode(tokens[start:end])
    )


def _paint(text: str, colour: str, draw_newline_arrow: bool) -> str:
    """Line by line, so that a pager which shows a part shows it in colour."""
    style = Style(color=colour)
    arrow = "↵" if draw_newline_arrow else ""
    lines = text.translate(CONTROL_PICTURES).split("\n")
    marked = [line + arrow for line in lines[:-1]] + lines[-1:]
    return "\n".join(style.render(line, color_system=ColorSystem.STANDARD) for line in marked)
