"""Messages and the helpers that need no renderer."""

import json

import pydantic
import pytest

from tests.tinker_cookbook.renderers.families import BY_NAME, controls_of, tokenizer_of
from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers import (
    Message,
    ParseFailureKind,
    ParseTermination,
    TextPart,
    ThinkingPart,
    ToolCall,
    TrainOnWhat,
    UnparsedToolCall,
    classify_parse_failure,
    ensure_text,
    format_content_as_string,
    get_text_content,
    parse_content_blocks,
)
from tinker_cookbook.renderers.base import (
    PARSE_FAILURE_DETAIL_MAX_CHARS,
    content_to_jsonable,
    detect_unterminated_tool_block,
    ensure_list,
    has_thinking,
    message_to_jsonable,
    parse_response_for_stop_token,
    parse_think_blocks,
    remove_thinking,
    tokens_weights_from_strings_weights,
)

TEXT = TextPart(type="text", text="a")
THINKING = ThinkingPart(type="thinking", thinking="t")
CALL = ToolCall(id="1", function=ToolCall.FunctionBody(name="f", arguments="{}"))


def test_ensure_text():
    assert ensure_text("a") == ensure_text([TEXT]) == "a"
    for parts in ((), (TEXT, TEXT), (THINKING,)):
        with pytest.raises(RendererError):
            ensure_text([*parts])


def test_text_and_thinking():
    message = Message(role="assistant", content=[THINKING, TEXT, TEXT])
    assert get_text_content(message) == "aa"
    assert get_text_content(Message(role="assistant", content="<think>t</think>a")) == "<think>t</think>a"
    assert has_thinking(message["content"])
    assert has_thinking("<think>t</think>")
    assert not has_thinking("a")
    assert remove_thinking(ensure_list(message["content"])) == [TEXT, TEXT]
    assert format_content_as_string(message["content"]) == "<think>t</think>\na\na"
    assert format_content_as_string(message["content"], "") == "<think>t</think>aa"
    assert format_content_as_string([{"type": "image", "image": "http://x"}]) == "<image>http://x</image>"
    with pytest.raises(RendererError):
        format_content_as_string([{"type": "video"}])  # type: ignore[list-item]


def test_jsonable():
    message = Message(
        role="assistant",
        content=[THINKING, TEXT],
        tool_calls=[CALL],
        unparsed_tool_calls=[UnparsedToolCall(raw_text="r", error="e")],
        trainable=True,
        tool_call_id="1",
        name="n",
    )
    plain = json.loads(json.dumps(message_to_jsonable(message)))
    assert set(plain) == set(message)
    assert plain["content"] == [THINKING, TEXT]
    assert ToolCall.model_validate(plain["tool_calls"][0]) == CALL


def test_jsonable_pictures():
    image = pytest.importorskip("PIL.Image").new("RGB", (2, 3))
    assert content_to_jsonable([{"type": "image", "image": "http://x"}]) == [
        {"type": "image", "image": "http://x"}
    ]
    json.dumps(content_to_jsonable([{"type": "image", "image": image}]))
    assert format_content_as_string([{"type": "image", "image": image}]) == "<image>Image(2x3, RGB)</image>"


def test_calls_are_strict():
    with pytest.raises(pydantic.ValidationError):
        ToolCall.model_validate({"function": {"name": "f", "arguments": "{}"}, "more": 1})
    with pytest.raises(pydantic.ValidationError):
        CALL.id = "2"  # type: ignore[misc]


def test_classify():
    clean, malformed = ParseTermination.STOP_SEQUENCE, ParseTermination.MALFORMED
    good = Message(role="assistant", content="a", tool_calls=[CALL])
    bad = Message(
        role="assistant",
        content="",
        unparsed_tool_calls=[UnparsedToolCall(raw_text="r", error=e) for e in ("one", "two" * 20_000)],
    )
    assert classify_parse_failure(good, clean) is None
    assert classify_parse_failure(good, ParseTermination.EOS) is None
    structural = classify_parse_failure(bad, malformed)
    assert structural is not None
    assert structural[0] is ParseFailureKind.STRUCTURAL
    content = classify_parse_failure(bad, clean)
    assert content is not None
    assert content[0] is ParseFailureKind.CONTENT
    assert content[1].startswith("one\ntwo")
    assert len(content[1]) == PARSE_FAILURE_DETAIL_MAX_CHARS == 16384
    assert clean.is_clean
    assert clean.is_stop_sequence
    assert not malformed.is_clean
    assert not ParseTermination.EOS.is_stop_sequence


def test_train_on_what_is_text():
    assert TrainOnWhat("last_assistant_turn") is TrainOnWhat.LAST_ASSISTANT_TURN
    assert len(TrainOnWhat) == 7


def test_content_blocks():
    assert parse_content_blocks("a") is None
    parsed = parse_content_blocks(
        ' a <think>t</think> b <tool_call>{"name": "f", "arguments": {"x": 1}, "id": 7}</tool_call>'
        '<think></think> c <tool_call>{"name": "g", "arguments": {}, "id": "i"}</tool_call><think>open'
    )
    assert parsed is not None
    parts, calls = parsed
    assert parts == [
        {"type": "text", "text": " a "},
        {"type": "thinking", "thinking": "t"},
        {"type": "text", "text": " b "},
        {"type": "text", "text": " c "},
        {"type": "text", "text": "<think>open"},
    ]
    first, second = calls
    assert isinstance(first, ToolCall)
    assert isinstance(second, ToolCall)
    assert first.id is None
    assert first.function.arguments == '{"x": 1}'
    assert second.id == "i"


def test_content_blocks_hold_what_they_hold():
    parsed = parse_content_blocks("<think>say <tool_call>{}</tool_call></think>a")
    assert parsed == ([{"type": "thinking", "thinking": "say <tool_call>{}</tool_call>"}, TEXT], [])
    parsed = parse_content_blocks(
        '<tool_call>{"name": "f", "arguments": {"x": "<think>t</think>"}}</tool_call>'
    )
    assert parsed is not None
    assert parsed[0] == []
    assert isinstance(parsed[1][0], ToolCall)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("{", "Invalid JSON: "),
        ("[]", "Tool call is not a JSON object"),
        ('{"name": 1, "arguments": {}}', "Missing or invalid 'name' field"),
        ('{"name": "f"}', "Missing or invalid 'arguments' field"),
        ('{"name": "f", "arguments": "{}"}', "Missing or invalid 'arguments' field"),
    ],
)
def test_content_block_errors(body, error):
    parsed = parse_content_blocks(f"<tool_call>{body}</tool_call>")
    assert parsed is not None
    (call,) = parsed[1]
    assert isinstance(call, UnparsedToolCall)
    assert call.raw_text == f"<tool_call>{body}</tool_call>"
    assert call.error.startswith(error)


def test_think_blocks():
    assert parse_think_blocks("a <tool_call>") is None
    assert parse_think_blocks("a<think></think> <think>t</think>") == [
        {"type": "text", "text": "a"},
        {"type": "text", "text": " "},
        {"type": "thinking", "thinking": "t"},
    ]
    assert parse_think_blocks("<think>open") == [{"type": "text", "text": "<think>open"}]


def test_unterminated():
    assert detect_unterminated_tool_block("<c>a</c>", "<c>", "</c>") is None
    found = detect_unterminated_tool_block("<c>a</c> <c>b", "<c>", "</c>")
    assert found is not None
    assert found.raw_text == "<c>b"
    assert found.error.startswith("unterminated tool block")


def test_stop_token():
    family = BY_NAME["llama3"]
    tokenizer, stop = tokenizer_of(family), controls_of(family)["<|eot_id|>"]
    text = tokenizer.encode("a , b", add_special_tokens=False)
    for tokens, termination in (
        (text, ParseTermination.MALFORMED),
        ([*text, stop], ParseTermination.STOP_SEQUENCE),
        ([*text, stop, stop], ParseTermination.MALFORMED),
    ):
        message = Message(role="assistant", content="a , b")
        assert parse_response_for_stop_token(tokens, tokenizer, stop) == (message, termination)


def test_strings_and_weights():
    family = BY_NAME["llama3"]
    tokenizer = tokenizer_of(family)
    tokens, weights = tokens_weights_from_strings_weights([("ab", 0.0), ("<|eot_id|>", 1.0)], tokenizer)
    assert tokenizer.decode(tokens) == "ab<|eot_id|>"
    assert weights == [0.0, 0.0, 1.0]
