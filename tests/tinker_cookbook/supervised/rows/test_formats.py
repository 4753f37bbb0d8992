"""Which columns make which examples."""

from collections.abc import Sequence
from typing import Any

import pytest

from tinker_cookbook.exceptions import ConfigurationError, DataFormatError
from tinker_cookbook.renderers.messages import ToolCall
from tinker_cookbook.supervised.rows.formats import detect

HI = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]


def example(row: Any, columns: Sequence[str] = ()) -> Any:
    return detect("a file", [row], columns).example(row)


@pytest.mark.parametrize(
    "row",
    [
        {"messages": HI},
        {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]},
        {"conversations": HI},
        {"prompt": "hi", "completion": "hello", "id": 3},
        {"prompt": HI[:1], "completion": HI[1:]},
        {"instruction": "hi", "input": "", "output": "hello"},
        {"instruction": "hi", "response": "hello"},
        {"question": "hi", "answer": "hello"},
        {"messages": '[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]'},
        {"prompt": "hi", "completion": "hello", "system": None},
    ],
)
def test_all_ways_to_write_one_exchange(row):
    assert example(row) == HI


def test_alpaca_input_and_system_columns_are_used():
    found = example({"instruction": "Add.", "input": "1 2", "output": "3", "system": "Be brief."})
    assert [message["content"] for message in found] == ["Be brief.", "Add.\n\n1 2", "3"]


def test_text():
    assert example({"text": "Once upon a time"}) == "Once upon a time"


def test_columns_of_other_names_can_be_given():
    row = {"frage": "hi", "antwort": "hello", "chat": HI, "prosa": "x"}
    assert example(row, ("frage", "antwort")) == HI
    assert example(row, ("chat",)) == HI
    assert example(row, ("prosa",)) == "x"
    with pytest.raises(
        DataFormatError, match="a file has no column frag; it has antwort, chat, frage, prosa"
    ):
        example(row, ("frag",))
    with pytest.raises(ConfigurationError, match="name one column"):
        example(row, ("frage", "antwort", "chat"))


def test_the_format_is_that_of_most_rows():
    rows = [{"text": "stray"}, {"prompt": "a", "completion": "b"}, {"prompt": "a", "completion": "b"}]
    assert str(detect("a file", rows)) == "prompt and completion (prompt, completion)"


def test_a_conversation_comes_before_text_beside_it():
    assert example({"messages": HI, "text": "the same, rendered"}) == HI


def test_unknown_columns_are_shown_with_what_is_known():
    with pytest.raises(DataFormatError, match="has the columns bar, foo, and none that is known: messages"):
        detect("a file", [{"foo": 1, "bar": 2}])


def test_tool_calls_parts_and_thinking():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    assistant = {"role": "assistant", "content": None, "tool_calls": [call], "name": None}
    thinker = {"role": "assistant", "content": "4", "reasoning_content": "2+2"}
    parts = {"role": "user", "content": [{"type": "text", "text": "hi", "image": None}]}
    found = example({"messages": [parts, assistant, thinker]})
    body = ToolCall.FunctionBody(name="f", arguments='{"x": 1}')
    assert found == [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": "", "tool_calls": [ToolCall(id="1", function=body)]},
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "2+2"}, {"type": "text", "text": "4"}],
        },
    ]


def test_tool_calls_of_sharegpt():
    turns = [
        {"from": "human", "value": "?"},
        {"from": "function_call", "value": '{"name": "f", "arguments": {}}'},
        {"from": "observation", "value": "7"},
    ]
    _, call, result = example({"conversations": turns})
    assert call["tool_calls"][0].function.name == "f"
    assert result == {"role": "tool", "content": "7"}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": []}, "'messages' has no messages"),
        ({"messages": "not json"}, "'messages' is text and no JSON"),
        ({"messages": {"role": "user"}}, "must be a list of messages, not dict"),
        ({"messages": ["hi"]}, "message 1 must be an object, not str"),
        ({"messages": [{"content": "hi"}]}, "message 1 has no role"),
        ({"messages": [*HI, {"role": "user"}]}, r"message 3 \(user\) has no content"),
        ({"messages": [{"role": "user", "content": 3}]}, "must be text or a list, not int"),
        ({"messages": [{"role": "user", "content": [{"type": "film"}]}]}, "types are text, thinking"),
        ({"messages": [{"role": "user", "content": "", "trainable": "yes"}]}, "'trainable' must be bool"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, "tool call cannot be read"),
        ({"messages": None}, "no 'messages'"),
        ({"conversations": [{"from": "narrator", "value": "x"}]}, "is from 'narrator'; known are human"),
        ({"conversations": [{"from": "human"}]}, "no text in 'value'"),
        ({"prompt": "x", "completion": ""}, "completion'? is empty"),
        ({"prompt": " ", "completion": "x"}, "prompt'? is empty"),
        ({"prompt": "x", "completion": 4}, "'completion' is a number and not text"),
        ({"prompt": "x", "completion": None}, "no 'completion'"),
        ({"text": "  "}, "'text' is empty"),
    ],
)
def test_reasons(row, reason):
    with pytest.raises(DataFormatError, match=reason):
        example(row)
