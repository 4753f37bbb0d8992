"""Our own rendering and the shipped chat template are the same text."""

import json
import random

import pytest
from transformers import AutoTokenizer

from scripts.tiny_chat.chatml import TEMPLATE, pieces, prompt_text, with_tools
from tinker_cookbook.tasks import TASKS, get_task, solution
from tinker_engine.model import tiny


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(tiny.FOLDER)


@pytest.mark.parametrize("name", TASKS)
def test_conversations_render_as_the_template_does(tokenizer, name):
    for problem in get_task(name).problems("train", 20):
        messages = [*problem.prompt, *solution(problem, random.Random(0))]
        tools = list(problem.tools) or None
        ours = "".join(text for text, _ in pieces(with_tools(messages, problem.tools)))
        assert tokenizer.apply_chat_template(messages, tools=tools, tokenize=False) == ours
        prompted = tokenizer.apply_chat_template(
            problem.prompt, tools=tools, tokenize=False, add_generation_prompt=True
        )
        assert prompted == prompt_text(problem.prompt, problem.tools)


def test_structured_calls_and_thinking_render_as_the_model_writes_them(tokenizer):
    call = {"name": "lookup", "arguments": {"name": "Zib", "field": "age"}}
    written = f"<think>It is in the book.</think><tool_call>{json.dumps(call)}</tool_call>"
    for arguments in (call["arguments"], json.dumps(call["arguments"])):
        function = {"name": "lookup", "arguments": arguments}
        message = {
            "role": "assistant",
            "content": "",
            "reasoning_content": "It is in the book.",
            "tool_calls": [{"type": "function", "function": function}],
        }
        shown = tokenizer.apply_chat_template([{"role": "user", "content": "?"}, message], tokenize=False)
        assert shown == f"<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n{written}<|im_end|>\n"


def test_tools_join_a_system_turn_that_is_there(tokenizer):
    from tinker_cookbook.tasks.tools import CALCULATOR

    messages = [{"role": "system", "content": "Be terse."}, {"role": "user", "content": "?"}]
    expected = (
        "<|im_start|>system\nBe terse.\n\nTools:\n- calculator(expression): works out + - *<|im_end|>\n"
        "<|im_start|>user\n?<|im_end|>\n"
    )
    wrapped = [{"type": "function", "function": CALCULATOR}]
    for tools in ([CALCULATOR], wrapped):
        assert tokenizer.apply_chat_template(messages, tools=tools, tokenize=False) == expected


def test_the_shipped_template_is_the_written_one():
    assert (tiny.FOLDER / "chat_template.jinja").read_text() == TEMPLATE
