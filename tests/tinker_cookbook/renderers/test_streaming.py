"""A response token by token says the same as the whole of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tinker_cookbook.renderers.families import (
    BY_NAME,
    DISTINCT,
    Family,
    controls_of,
    renderer_of,
    tokenizer_of,
)
from tests.tinker_cookbook.renderers.small_tokenizers import byte_tokens
from tests.tinker_cookbook.renderers.strategies import QUICK, answers, responses
from tests.tinker_cookbook.renderers.test_round_trip import produced
from tinker_cookbook.renderers import (
    Message,
    MessageDelta,
    StreamingMessageHeader,
    StreamingTextDelta,
    StreamingThinkingDelta,
    Utf8TokenDecoder,
    get_text_content,
)
from tinker_cookbook.renderers.base import StreamingParser, ensure_list
from tinker_cookbook.renderers.encoding import Markup
from tinker_cookbook.renderers.family import FamilyRenderer

STREAMING = [name for name in DISTINCT if BY_NAME[name].streams]


def family_renderer(family: Family) -> FamilyRenderer:
    renderer = renderer_of(family)
    assert isinstance(renderer, FamilyRenderer)
    return renderer


def text_of(deltas: list[MessageDelta]) -> str:
    return "".join(d.text for d in deltas if isinstance(d, StreamingTextDelta))


def thinking_of(deltas: list[MessageDelta]) -> str:
    return "".join(d.thinking for d in deltas if isinstance(d, StreamingThinkingDelta))


def thinking_in(message: Message) -> str:
    return "".join(p["thinking"] for p in ensure_list(message["content"]) if p["type"] == "thinking")


def check_form(deltas: list[MessageDelta]) -> None:
    """Header once and first, the message once and last, no empty delta, and an index that never falls."""
    assert isinstance(deltas[0], StreamingMessageHeader)
    assert deltas[0].role == "assistant"
    assert isinstance(deltas[-1], dict)
    between = deltas[1:-1]
    indices = []
    for delta in between:
        assert isinstance(delta, StreamingTextDelta | StreamingThinkingDelta)
        assert delta.text if isinstance(delta, StreamingTextDelta) else delta.thinking
        indices.append((delta.content_index, type(delta)))
    assert [i for i, _ in indices] == sorted(i for i, _ in indices)
    assert len({i for i, _ in indices}) == len(set(indices)), "a part is text or thinking, not both"


@pytest.mark.parametrize("name", STREAMING)
@QUICK
@given(data=st.data())
def test_deltas_join_to_the_message(name, data):
    family = BY_NAME[name]
    renderer = renderer_of(family)
    response = produced(renderer, data.draw(answers(family)))
    deltas = list(renderer.parse_response_streaming(response))
    message, _ = renderer.parse_response(response)
    check_form(deltas)
    assert deltas[-1] == message
    assert text_of(deltas) == get_text_content(message)
    assert thinking_of(deltas) == thinking_in(message)


@pytest.mark.parametrize("name", STREAMING)
@QUICK
@given(data=st.data())
def test_cut_anywhere(name, data):
    """What was given out before the cut is given out after it too, and never taken back by the message."""
    family = BY_NAME[name]
    renderer = family_renderer(family)
    response = produced(renderer, data.draw(answers(family)))
    whole = list(renderer.parse_response_streaming(response))
    starts = isinstance(whole[0], StreamingMessageHeader) and renderer._closes_first(response)
    parser = renderer.streaming_parser(starts_thinking=starts)
    so_far: list[MessageDelta] = []
    for token in response:
        so_far += parser.feed(token)
        assert text_of(whole).startswith(text_of(so_far))
        assert thinking_of(whole).startswith(thinking_of(so_far))
    assert [*so_far, *parser.finish()] == whole
    cut = data.draw(st.integers(0, len(response)))
    parser.reset()
    deltas = [delta for token in response[:cut] for delta in parser.feed(token)] + parser.finish()
    check_form(deltas)
    if not starts:  # else the parser of the message cannot know that the prompt had begun to think
        message = deltas[-1]
        assert isinstance(message, dict)
        assert get_text_content(message).startswith(text_of(deltas))
        assert thinking_of(deltas) == thinking_in(message)


@pytest.mark.parametrize("name", STREAMING)
@QUICK
@given(data=st.data())
def test_garbage(name, data):
    family = BY_NAME[name]
    renderer = family_renderer(family)
    response = data.draw(responses(family))
    deltas = list(renderer.parse_response_streaming(response))
    check_form(deltas)
    message, _ = renderer.parse_response(response)
    if renderer._end_message_token in response:
        assert deltas[-1] == message


@pytest.mark.parametrize("name", STREAMING)
def test_nothing_follows_the_end(name):
    renderer = family_renderer(BY_NAME[name])
    parser = renderer.streaming_parser()
    end = renderer._end_message_token
    tokens = renderer.tokenizer.encode("ab", add_special_tokens=False)
    deltas = [
        delta for token in [*tokens, end, *tokens, end] for delta in parser.feed(token)
    ] + parser.finish()
    assert text_of(deltas) == "ab"
    assert deltas[-1] == {"role": "assistant", "content": "ab"}


@pytest.mark.parametrize("name", [n for n in STREAMING if BY_NAME[n].thinking and BY_NAME[n].thinks_last])
def test_a_response_cut_off_while_thinking(name):
    renderer = family_renderer(BY_NAME[name])
    opening = renderer.think.opening if renderer.think else ""
    response = renderer.encoder.tokens([Markup(opening), "so far"])
    *deltas, message = renderer.parse_response_streaming(response)
    assert thinking_of(deltas) == "so far"
    assert message == {"role": "assistant", "content": [{"type": "thinking", "thinking": "so far"}]}


def test_part_of_a_tag_is_held_back():
    renderer = family_renderer(BY_NAME["smollm2"])  # whose tags are text
    parser = renderer.streaming_parser()
    encode = renderer.tokenizer.encode

    def fed(text: str) -> list[MessageDelta]:
        return [d for token in encode(text, add_special_tokens=False) for d in parser.feed(token)]

    assert text_of(fed("a<th")) == "a"
    assert text_of(fed("i")) == ""
    assert text_of(fed("s")) == "<this"
    assert thinking_of(fed("<think>b</thin")) == "b"
    assert thinking_of(fed("g")) == "</thing"
    assert text_of(fed("</think>c<tool_cal")) == "c"
    assert text_of(parser.finish()) == "<tool_cal"


def test_text_after_a_call_comes_at_the_end():
    renderer = family_renderer(BY_NAME["smollm2"])
    text = 'a<tool_call>{"name": "f", "arguments": {}}</tool_call>b'
    tokens = [*renderer.encoder.tokens([text]), renderer._end_message_token]
    *deltas, message = renderer.parse_response_streaming(tokens)
    assert isinstance(message, dict)
    assert text_of(deltas) == "ab" == message["content"]


def test_cut_off_where_a_second_thought_begins():
    renderer = family_renderer(BY_NAME["smollm2"])
    *deltas, message = renderer.parse_response_streaming(renderer.encoder.tokens(["<think>a</think><think>"]))
    assert thinking_of(deltas) == "a"
    assert isinstance(message, dict)
    assert message["content"] == [{"type": "thinking", "thinking": "a"}]


def test_content_index_rises_at_every_border():
    renderer = family_renderer(BY_NAME["smollm2"])
    tokens = renderer.tokenizer.encode("a<think>b</think>c<think>d</think>e", add_special_tokens=False)
    deltas = list(renderer.parse_response_streaming(tokens))[1:-1]
    assert [getattr(delta, "content_index", None) for delta in deltas] == [0, 1, 2, 3, 4]


def test_llama_knows_no_thinking():
    renderer = renderer_of(BY_NAME["llama3"])
    tokens = renderer.tokenizer.encode("a<think>b</think>", add_special_tokens=False)
    *deltas, message = renderer.parse_response_streaming([*tokens, *map(int, renderer.get_stop_sequences())])
    assert text_of(deltas) == "a<think>b</think>"
    assert message == Message(role="assistant", content="a<think>b</think>")


# --- characters spread over tokens ----------------------------------------------------------------------------


@QUICK
@given(text=st.text(max_size=12))
def test_characters_are_never_cut(text):
    tokenizer = tokenizer_of(BY_NAME["llama3"])
    decoder = Utf8TokenDecoder(tokenizer)
    given_out = ""
    for token in tokenizer.encode(text, add_special_tokens=False):
        given_out += decoder.decode([token]) or ""
        assert text.startswith(given_out)
    assert given_out + decoder.flush() == text
    assert not decoder.has_pending()


@QUICK
@given(data=st.binary(max_size=40))
def test_bytes_that_are_no_text_read_as_they_do_at_once(data):
    tokenizer = tokenizer_of(BY_NAME["llama3"])
    tokens = byte_tokens(tokenizer, data)
    decoder = Utf8TokenDecoder(tokenizer)
    joined = "".join(decoder.decode([token]) or "" for token in tokens) + decoder.flush()
    assert joined == tokenizer.decode(tokens)


def test_decoder_holds_and_resets():
    tokenizer = tokenizer_of(BY_NAME["llama3"])
    first, *rest = tokenizer.encode("世", add_special_tokens=False)
    decoder = Utf8TokenDecoder(tokenizer)
    assert decoder.decode([first]) is None
    assert decoder.has_pending()
    decoder.reset()
    assert not decoder.has_pending()
    assert decoder.flush() == ""
    assert decoder.decode([first, *rest]) == "世"


def test_plain_parser_by_itself():
    """For renderers written by hand."""
    family = BY_NAME["llama3"]
    tokenizer = tokenizer_of(family)
    end = controls_of(family)["<|eot_id|>"]
    parser = StreamingParser(
        tokenizer, end, lambda tokens: Message(role="assistant", content=tokenizer.decode(tokens[:-1]))
    )
    tokens = [*tokenizer.encode("ab  c ", add_special_tokens=False), end]
    deltas = [delta for token in tokens for delta in parser.feed(token)] + parser.finish()
    check_form(deltas)
    assert text_of(deltas) == "ab  c "
