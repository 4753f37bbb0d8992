"""What is made of particular responses."""

import json

import pytest

from tests.tinker_cookbook.renderers.families import (
    BY_NAME,
    FAMILIES,
    NAMES,
    controls_of,
    renderer_of,
    tokenizer_of,
)
from tinker_cookbook.renderers import Message, ParseTermination, Renderer, get_text_content
from tinker_cookbook.renderers.encoding import MARK, Markup

JSON_FAMILIES = [
    "chatml",
    "chatml on tiny-chat",
    "smollm2",
    "qwen3",
    "qwen3_disable_thinking",
    "qwen3_instruct",
]
THINKING = [f.name for f in FAMILIES if f.name in JSON_FAMILIES or f.name.startswith(("qwen3_5", "deepseek"))]
WITH_STOP_TOKENS = [name for name in NAMES if name != "role_colon"]


def tokens_of(renderer: Renderer, text: str, *, stop: bool = True) -> list[int]:
    """Control tokens where the text spells them."""
    tokens = renderer.encoder.tokens([Markup(text)])
    return [*tokens, *map(int, renderer.get_stop_sequences()[:1])] if stop else tokens


def parse(name: str, text: str, *, stop: bool = True) -> tuple[Message, ParseTermination]:
    renderer = renderer_of(BY_NAME[name])
    return renderer.parse_response(tokens_of(renderer, text, stop=stop))


def calls_of(message: Message) -> list[tuple[str, object]]:
    return [(c.function.name, json.loads(c.function.arguments)) for c in message.get("tool_calls", [])]


# --- how a response ends --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_STOP_TOKENS)
def test_no_stop(name):
    message, termination = parse(name, "half an ans", stop=False)
    assert termination is ParseTermination.MALFORMED
    assert message == {"role": "assistant", "content": "half an ans"}


@pytest.mark.parametrize("name", THINKING)
def test_no_stop_keeps_the_tags_in_the_text(name):
    message, _ = parse(name, "<think>hm</think>half", stop=False)
    assert message["content"] == "<think>hm</think>half"


@pytest.mark.parametrize("name", WITH_STOP_TOKENS)
def test_two_stops(name):
    renderer = renderer_of(BY_NAME[name])
    once = tokens_of(renderer, "yes")
    message, termination = renderer.parse_response([*once, *once])
    assert termination is ParseTermination.MALFORMED
    assert get_text_content(message) == "yes"
    message, termination = renderer.parse_response(once)
    assert termination is ParseTermination.STOP_SEQUENCE
    assert message == {"role": "assistant", "content": "yes"}


def test_both_stops_of_gpt_oss():
    renderer = renderer_of(BY_NAME["gpt_oss_low_reasoning"])
    controls = controls_of(BY_NAME["gpt_oss_low_reasoning"])
    assert renderer.get_stop_sequences() == [controls["<|return|>"], controls["<|call|>"]]


@pytest.mark.parametrize("name", WITH_STOP_TOKENS)
def test_nothing_but_the_stop(name):
    assert parse(name, "") == ({"role": "assistant", "content": ""}, ParseTermination.STOP_SEQUENCE)


@pytest.mark.parametrize(
    ("text", "content", "termination"),
    [
        (" yes\n\nUser:", "yes", ParseTermination.STOP_SEQUENCE),
        (" yes</s>", "yes", ParseTermination.EOS),
        (" yes\n\n</s>", "yes", ParseTermination.EOS),
        (" yes", "yes", ParseTermination.MALFORMED),
        (" yes\n\nUser:</s>", "yes", ParseTermination.MALFORMED),
        (" yes\n\nUser: and\n\nUser:", "yes", ParseTermination.MALFORMED),
        ("  yes", " yes", ParseTermination.MALFORMED),
        ("", "", ParseTermination.MALFORMED),
    ],
)
def test_role_colon(text, content, termination):
    assert parse("role_colon", text, stop=False) == ({"role": "assistant", "content": content}, termination)


def test_role_colon_stop():
    assert renderer_of(BY_NAME["role_colon"]).get_stop_sequences() == ["\n\nUser:"]


# --- thinking and calls ---------------------------------------------------------------------------------------


GOOD = '<tool_call>\n{"name": "%s", "arguments": {"a": [1, 2]}}\n</tool_call>'


@pytest.mark.parametrize("name", JSON_FAMILIES)
def test_two_calls_and_one_that_cannot_be_read(name):
    bad = {
        "not JSON": "Invalid JSON",
        '{"arguments": {}}': "Missing or invalid 'name' field",
        '{"name": "f", "arguments": "x"}': "Missing or invalid 'arguments' field",
        "[1]": "Tool call is not a JSON object",
        '{"name": "f", "arguments": {"a": ' + "[" * 100_000 + "}}": "",
        '{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}": "",
        '{"name": "\\ud800", "arguments": {}}': "",
    }
    for body, error in bad.items():
        block = f"<tool_call>\n{body}\n</tool_call>"
        message, termination = parse(name, f"{GOOD % 'f-1'}\n{block}\n{GOOD % 'g.2'}")
        assert termination is ParseTermination.STOP_SEQUENCE
        assert calls_of(message) == [("f-1", {"a": [1, 2]}), ("g.2", {"a": [1, 2]})]
        (unparsed,) = message.get("unparsed_tool_calls", [])
        assert unparsed.raw_text == block
        assert unparsed.error
        assert unparsed.error.startswith(error)
        assert message["content"] == ""


@pytest.mark.parametrize("name", JSON_FAMILIES)
def test_a_call_that_does_not_end(name):
    message, termination = parse(name, f'first\n{GOOD % "f"}\n<tool_call>\n{{"name": "g"')
    assert termination is ParseTermination.STOP_SEQUENCE
    assert calls_of(message) == [("f", {"a": [1, 2]})]
    (unparsed,) = message.get("unparsed_tool_calls", [])
    assert unparsed.error.startswith("unterminated tool block")
    assert MARK not in unparsed.error + unparsed.raw_text
    assert unparsed.raw_text == '<tool_call>\n{"name": "g"'
    assert get_text_content(message).strip() == "first"


@pytest.mark.parametrize("name", [n for n in THINKING if not n.startswith(("deepseek", "qwen3_5"))])
def test_thinking_text_and_call_keep_their_order(name):
    message, _ = parse(name, f"<think>t</think>words{GOOD % 'f'}")
    assert message["content"] == [{"type": "thinking", "thinking": "t"}, {"type": "text", "text": "words"}]
    assert calls_of(message) == [("f", {"a": [1, 2]})]


@pytest.mark.parametrize("name", THINKING)
def test_an_empty_thought_is_none(name):
    assert parse(name, "<think></think>a")[0]["content"] == "a"
    assert parse(name, "<think>\n\n</think>a")[0]["content"] in (
        "a",
        [{"type": "thinking", "thinking": "\n\n"}, {"type": "text", "text": "a"}],
    )


@pytest.mark.parametrize("name", THINKING)
def test_thinking_that_the_prompt_opened(name):
    message, _ = parse(name, "hm</think>a")
    assert message["content"] == [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}]


@pytest.mark.parametrize("name", THINKING)
def test_thinking_that_does_not_end_is_text(name):
    assert parse(name, "a<think>hm")[0]["content"] == "a<think>hm"


@pytest.mark.parametrize("name", THINKING)
def test_a_call_that_is_only_thought_of_is_none(name):
    call = GOOD % "f"
    if name.startswith("deepseek"):
        call = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    for opening in ("<think>", ""):
        message, _ = parse(name, f"{opening}I could say {call}.</think>No.")
        assert "tool_calls" not in message
        assert "unparsed_tool_calls" not in message
        assert message["content"] == [
            {"type": "thinking", "thinking": f"I could say {call}."},
            {"type": "text", "text": "No."},
        ]


@pytest.mark.parametrize("name", ["chatml", "qwen3", "qwen3_5", "deepseekv3"])
def test_text_that_spells_a_tag_is_text(name):
    """Where the tag is a token, its letters are not the tag."""
    renderer = renderer_of(BY_NAME[name])
    stop = [int(s) for s in renderer.get_stop_sequences()]
    for text in ("<think>a</think>b", f"{MARK}<think>a{MARK}</think>b", "<tool_call>{}</tool_call>"):
        message, _ = renderer.parse_response([*renderer.encoder.tokens([text]), *stop])
        assert get_text_content(message) == text.replace(MARK, "\ufffd")
        assert set(message) == {"role", "content"}


# --- XML ------------------------------------------------------------------------------------------------------


def xml(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


def test_qwen3_5_values():
    body = "<function=f.g-h>\n"
    for key, value in {"n": "5", "o": '{"x": [1]}', "t": "two\nlines", "b": "true", "e": ""}.items():
        body += f"<parameter={key}>\n{value}\n</parameter>\n"
    message, _ = parse("qwen3_5", f"hm\n</think>\n\nwords\n\n{xml(body + '</function>')}")
    assert calls_of(message) == [("f.g-h", {"n": 5, "o": {"x": [1]}, "t": "two\nlines", "b": True, "e": ""})]
    assert message["content"] == [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "words"},
    ]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("nothing", "Malformed"),
        ("<function=f>\n<parameter=a>\n1\n</parameter>", "Malformed"),
        ("<function=>\n</function>", "Missing function name"),
        ("<function=f>\nloose\n</function>", "Unexpected non-parameter content"),
        ("<function=f>\n<parameter=>\n1\n</parameter>\n</function>", "Empty parameter name"),
        ("<function=f>\n</function>\nmore", "Unexpected trailing content"),
    ],
)
def test_qwen3_5_errors(body, error):
    good = xml("<function=g>\n</function>")
    message, _ = parse("qwen3_5", f"{xml(body)}\n{good}")
    assert calls_of(message) == [("g", {})]
    (unparsed,) = message.get("unparsed_tool_calls", [])
    assert error in unparsed.error
    assert unparsed.raw_text == xml(body)


# --- DeepSeek and gpt-oss --------------------------------------------------------------------------------------


def test_deepseek_calls():
    section = "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>"
    call = "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
    both = section.format(call.format("a-b.c", '{"x": 1}') + call.format("d", "nonsense"))
    message, termination = parse("deepseekv3", f"words{both}")
    assert termination is ParseTermination.STOP_SEQUENCE
    assert message["content"] == "words"
    assert calls_of(message) == [("a-b.c", {"x": 1})]
    (unparsed,) = message.get("unparsed_tool_calls", [])
    assert unparsed.raw_text == call.format("d", "nonsense")
    assert unparsed.error.startswith("Invalid JSON")
    message, _ = parse("deepseekv3", "words<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f")
    (unparsed,) = message.get("unparsed_tool_calls", [])
    assert unparsed.error.startswith("unterminated tool block")
    assert message["content"] == "words"


def test_gpt_oss_channels():
    analysis = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    message, _ = parse("gpt_oss_low_reasoning", f"{analysis}<|channel|>final<|message|>yes")
    assert message["content"] == [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "yes"},
    ]
    renderer = renderer_of(BY_NAME["gpt_oss_low_reasoning"])
    call = (
        f'{analysis}<|channel|>commentary to=functions.a-b.c <|constrain|>json<|message|>{{"x": 1}}<|call|>'
    )
    message, termination = renderer.parse_response(tokens_of(renderer, call, stop=False))
    assert termination is ParseTermination.STOP_SEQUENCE
    assert calls_of(message) == [("a-b.c", {"x": 1})], "models also write the recipient after the channel"
    assert message["content"] == [{"type": "thinking", "thinking": "hm"}]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (" to=functions.f<|channel|>commentary json<|message|>nonsense<|call|>", "Invalid JSON"),
        (" to=functions.f<|channel|>commentary json<|message|>[1]<|call|>", "not a JSON object"),
        (" to=functions.f<|channel|>commentary<|call|>", "unterminated tool block"),
    ],
)
def test_gpt_oss_errors(call, error):
    message, termination = parse("gpt_oss_low_reasoning", call, stop=False)
    assert termination is ParseTermination.STOP_SEQUENCE
    (unparsed,) = message.get("unparsed_tool_calls", [])
    assert error in unparsed.error
    assert MARK not in unparsed.raw_text


def test_names_that_are_no_tokens_are_left_alone():
    assert "<think>" not in tokenizer_of(BY_NAME["smollm2"]).get_added_vocab()
    assert parse("smollm2", "<think>t</think>a")[0]["content"] == [
        {"type": "thinking", "thinking": "t"},
        {"type": "text", "text": "a"},
    ]
