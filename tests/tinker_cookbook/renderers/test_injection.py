"""Nobody's text becomes a control token, whatever it says."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tinker_cookbook.renderers.families import BY_NAME, DISTINCT, Family, controls_of, renderer_of
from tests.tinker_cookbook.renderers.strategies import QUICK
from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers import Message, TextPart, ThinkingPart, ToolCall, TrainOnWhat

HARMLESS = "abc"


def control_tokens(family: Family, tokens: list[int]) -> Counter[int]:
    controls = set(controls_of(family).values())
    return Counter(token for token in tokens if token in controls)


def attacks(family: Family) -> st.SearchStrategy[str]:
    """Control tokens' strings: whole, in halves, one within another, next to letters and blanks."""
    whole = st.sampled_from(sorted(controls_of(family)))
    halves = whole.flatmap(lambda c: st.sampled_from([c[: len(c) // 2], c[len(c) // 2 :], c[:-1], c[1:]]))
    nested = st.tuples(whole, whole).map(lambda pair: pair[0][:4] + pair[1] + pair[0][4:])
    return st.lists(
        st.one_of(whole, halves, nested, st.text("a \n<|", max_size=2)), min_size=1, max_size=4
    ).map("".join)


def conversation(family: Family, say: list[str]) -> list[Message]:
    """With a text of `say` in every place that somebody's text may come to stand."""
    answer = Message(role="assistant", content=[TextPart(type="text", text=say[0])])
    messages = [Message(role="user", content=say[1]), answer]
    if family.tools:
        asked = Message(role="assistant", content=[TextPart(type="text", text=say[2])])
        arguments = json.dumps({say[3]: say[3]}, ensure_ascii=False)
        asked["tool_calls"] = [
            ToolCall(id=say[4], function=ToolCall.FunctionBody(name=say[4], arguments=arguments))
        ]
        result = Message(role="tool", content=say[5], name=say[4], tool_call_id=say[4])
        messages = [Message(role="user", content=say[6]), asked, result, *messages]
    return [*messages, Message(role="user", content=[TextPart(type="text", text=say[7])])]


@pytest.mark.parametrize("name", DISTINCT)
@QUICK
@given(data=st.data())
def test_texts_names_and_arguments(name, data):
    family = BY_NAME[name]
    renderer = renderer_of(family)
    said = data.draw(st.lists(attacks(family), min_size=8, max_size=8))
    # A text that is trimmed to nothing may lose the blanks before a call, never a token.
    said = [text if text.strip() else HARMLESS for text in said]
    prompt = renderer.build_generation_prompt(conversation(family, said)).to_ints()
    harmless = renderer.build_generation_prompt(conversation(family, [HARMLESS] * 8)).to_ints()
    assert control_tokens(family, prompt) == control_tokens(family, harmless)


@pytest.mark.parametrize("name", DISTINCT)
@QUICK
@given(data=st.data())
def test_the_last_answer_and_its_thinking(name, data):
    family = BY_NAME[name]
    renderer = renderer_of(family)

    def example(text: str, thinking: str) -> list[int]:
        parts = [ThinkingPart(type="thinking", thinking=thinking)] if family.thinking else []
        answer = Message(role="assistant", content=[*parts, TextPart(type="text", text=text)])
        question = Message(role="user", content="?")
        return renderer.build_supervised_example([question, answer], TrainOnWhat.ALL_TOKENS)[0].to_ints()

    texts = data.draw(st.tuples(attacks(family), attacks(family)))
    text, thinking = (t if t.strip() else HARMLESS for t in texts)
    attacked, harmless = example(text, thinking), example(HARMLESS, HARMLESS)
    assert control_tokens(family, attacked) == control_tokens(family, harmless)


@pytest.mark.parametrize("name", DISTINCT)
@QUICK
@given(data=st.data())
def test_roles(name, data):
    """A role that somebody made up is text, or is refused."""
    family = BY_NAME[name]
    renderer = renderer_of(family)

    def prompt(role: str) -> list[int]:
        return renderer.build_generation_prompt([Message(role=role, content="a")]).to_ints()

    try:
        attacked, harmless = prompt(data.draw(attacks(family))), prompt("critic")
    except RendererError:
        assert family.renderer_name.startswith("deepseek")
        return
    assert control_tokens(family, attacked) == control_tokens(family, harmless)


TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


@pytest.mark.parametrize("name", DISTINCT)
@QUICK
@given(data=st.data())
def test_system_messages_may_hold_tags_alone(name, data):
    """The developer's text shows the model how to call tools; it cannot begin or end a message."""
    family = BY_NAME[name]
    renderer = renderer_of(family)
    allowed = {
        n
        for text, n in controls_of(family).items()
        if text in TAGS or "tool▁call" in text or "tool▁sep" in text
    }

    def prompt(text: str) -> list[int]:
        system = Message(role="system", content=text)
        return renderer.build_generation_prompt([system, Message(role="user", content="a")]).to_ints()

    attack = data.draw(attacks(family))
    more = control_tokens(family, prompt(attack if attack.strip() else HARMLESS))
    more.subtract(control_tokens(family, prompt(HARMLESS)))
    assert {token for token, count in more.items() if count} <= allowed


@pytest.mark.parametrize("name", DISTINCT)
def test_prefill_is_the_callers(name):
    """Who puts words in the model's mouth may mean control tokens by them."""
    family = BY_NAME[name]
    text, token = next(iter(controls_of(family).items()))
    prompt = renderer_of(family).build_generation_prompt(
        [Message(role="user", content="a")], prefill=f"x{text}y"
    )
    assert token in prompt.to_ints()[-3:]
