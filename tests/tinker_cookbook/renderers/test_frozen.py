"""Prompts and examples against what the models' own chat templates said when `frozen.json` was written."""

from typing import Any

import pytest

from tests.tinker_cookbook.renderers.conversations import TOOLS
from tests.tinker_cookbook.renderers.families import FROZEN
from tests.tinker_cookbook.renderers.small_tokenizers import small_tokenizer
from tinker_cookbook.renderers import Message, Renderer, ToolCall, get_renderer

CASES = [(name, i) for name, family in FROZEN.items() for i in range(len(family["cases"]))]


def messages_of(case: dict[str, Any]) -> list[Message]:
    messages: list[Message] = [Message(**message) for message in case["messages"]]
    for message in messages:
        if "tool_calls" in message:
            message["tool_calls"] = [ToolCall.model_validate(call) for call in message["tool_calls"]]
    return messages


def with_tools(renderer: Renderer, messages: list[Message]) -> list[Message]:
    own = messages[0]["role"] == "system"
    prefix = renderer.create_conversation_prefix_with_tools(TOOLS, str(messages[0]["content"]) if own else "")
    return [*prefix, *messages[own:]]


@pytest.mark.parametrize(("name", "i"), CASES)
def test_frozen(name: str, i: int):
    family, case = FROZEN[name], FROZEN[name]["cases"][i]
    tokenizer = small_tokenizer(family["controls"], bos=family["bos"], eos=family["eos"])
    renderer = get_renderer(name, tokenizer)
    conversation = messages_of(case)
    if case["tools"]:
        conversation = with_tools(renderer, conversation)
    prompt = renderer.build_generation_prompt(conversation[:-1]).to_ints()
    assert prompt == tokenizer.encode(case["prompt"], add_special_tokens=False)
    example, _ = renderer.build_supervised_example(conversation)
    text = case["prompt"][: case["shared"]] + case["example"]
    assert example.to_ints() == tokenizer.encode(text, add_special_tokens=False)


def test_every_kind_of_conversation_is_frozen():
    """So that a new `frozen.json` cannot come to hold nothing."""
    assert len(FROZEN) == 13
    for name, family in FROZEN.items():
        assert len(family["cases"]) >= 4, name
    with_calls = [name for name, f in FROZEN.items() if "tool_calls" in str(f["cases"])]
    assert len(with_calls) == 8, "all but llama3, which has none, and gpt-oss, which writes them otherwise"
