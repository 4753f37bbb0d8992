"""Texts, messages and responses made to trip a renderer over."""

import json
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.tinker_cookbook.renderers.families import Family, controls_of, tokenizer_of
from tinker_cookbook.renderers import Message, TextPart, ThinkingPart, ToolCall
from tinker_cookbook.renderers.tool_formats import json_or_text

QUICK = settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)

LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\U0010ffff")
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
MEAN = (
    "<",
    "<th",
    "</thi",
    "<tool_",
    "\n",
    "\n\n",
    " ",
    "世界",
    "👩‍👩‍👧",
    "\ufffd",
    "{",
    '"',
    "to=functions.x",
)


def texts(family: Family) -> st.SearchStrategy[str]:
    """Odd text. Where tags are plain text, text that spells one is read as one, and is left out."""
    if family.renderer_name == "role_colon":
        return plain_texts()
    strings = [*MEAN, *controls_of(family), *(c[:-1] for c in controls_of(family))]
    pieces = st.one_of(st.sampled_from(strings), st.text(LETTERS, max_size=6))
    text = st.lists(pieces, max_size=5).map("".join)
    if family.tags_are_text:
        return text.filter(lambda t: not any(tag in t for tag in TAGS))
    return text


def plain_texts() -> st.SearchStrategy[str]:
    return st.text("ab c\n世é<", max_size=8).map(lambda t: t.strip() or "x")


def arguments() -> st.SearchStrategy[dict[str, Any]]:
    scalars = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(LETTERS, max_size=8).filter(_is_no_odd_numeral),
        st.sampled_from(["</tool_call", "5", "two\nlines", " x ", ""]),
    )
    values = st.recursive(
        scalars,
        lambda inner: st.one_of(
            st.lists(inner, max_size=2), st.dictionaries(st.text("abc", max_size=3), inner, max_size=2)
        ),
        max_leaves=4,
    )
    keys = st.text("abz_-é9", min_size=1, max_size=5)
    return st.dictionaries(keys, values, max_size=3)


def _is_no_odd_numeral(text: str) -> bool:
    """Where strings are written bare, "0E0" is read as the number that is written 0.0."""
    read = json_or_text(text)
    return isinstance(read, str) or json.dumps(read) == text


@st.composite
def tool_calls(draw: st.DrawFn) -> ToolCall:
    """Names without blanks, angle brackets and quotes: no family can write those so that they can be read again."""
    name = draw(st.text("abcXYZ019_-./:é", min_size=1, max_size=8))
    written = json.dumps(
        draw(arguments()), ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1]))
    )
    return ToolCall(function=ToolCall.FunctionBody(name=name, arguments=written))


@st.composite
def answers(draw: st.DrawFn, family: Family) -> Message:
    """An assistant message of all that the family can write."""
    kinds = ["text", "thinking"] if family.thinking else ["text"]
    parts: list[Any] = []
    for kind in draw(st.lists(st.sampled_from(kinds), max_size=3)):
        text = draw(texts(family))
        parts.append(
            TextPart(type="text", text=text)
            if kind == "text"
            else ThinkingPart(type="thinking", thinking=text)
        )
    if family.renderer_name in ("llama3", "role_colon"):
        parts = parts[:1] or [TextPart(type="text", text="x")]
    message = Message(role="assistant", content=parts)
    if family.tools and (calls := draw(st.lists(tool_calls(), max_size=family.calls))):
        message["tool_calls"] = calls
    return message


def responses(family: Family) -> st.SearchStrategy[list[int]]:
    """Tokens of any kind; control tokens, stops above all, are frequent, and some ids are no token at all."""
    size = len(tokenizer_of(family))
    controls = sorted(controls_of(family).values())
    token = st.one_of(
        st.sampled_from(controls),
        st.sampled_from(controls),
        st.integers(0, size - 1),
        st.sampled_from([size, size + 1000]),
        st.sampled_from(tokenizer_of(family).encode('<>{}"\n name', add_special_tokens=False)),
    )
    return st.lists(token, max_size=30)
