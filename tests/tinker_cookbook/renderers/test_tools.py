"""How models are told of their tools."""

from typing import Any

import pytest

from tests.tinker_cookbook.renderers.conversations import TOOLS
from tests.tinker_cookbook.renderers.families import BY_NAME, FAMILIES, renderer_of
from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers import Message, ToolCall, ToolSpec, TrainOnWhat, get_text_content
from tinker_cookbook.renderers.typescript import tool_namespace, typescript_type

WITH_TOOLS = [family.name for family in FAMILIES if family.tools]
NO_PARAMETERS: ToolSpec = {"name": "now", "description": "The time", "parameters": {}}


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_prefix(name):
    renderer = renderer_of(BY_NAME[name])
    assert renderer.create_conversation_prefix_with_tools([]) == []
    assert renderer.create_conversation_prefix_with_tools([], "Be brief.") == [
        {"role": "system", "content": "Be brief."}
    ]
    for system in ("", "Be brief."):
        prefix = renderer.create_conversation_prefix_with_tools([*TOOLS, NO_PARAMETERS], system)
        declared = get_text_content(prefix[-1])
        assert declared.count("Be brief.") == bool(system)
        assert declared == declared.strip() or name.startswith("deepseek")
        for tool in [*TOOLS, NO_PARAMETERS]:
            assert tool["name"] in declared
            assert tool["description"] in declared
        conversation = [*prefix, Message(role="user", content="Well?")]
        text = renderer.tokenizer.decode(renderer.build_generation_prompt(conversation).to_ints())
        assert declared.split("\n")[0] in text
        example = [*conversation, Message(role="assistant", content="Yes.")]
        _, weights = renderer.build_supervised_example(example, TrainOnWhat.LAST_ASSISTANT_TURN)
        assert weights.any()


@pytest.mark.parametrize("name", [n for n in WITH_TOOLS if n.startswith(("qwen", "chatml", "deepseek"))])
def test_the_tags_of_a_declaration_are_tokens(name):
    """As in the template: the model is shown the very tokens that it is to write."""
    renderer = renderer_of(BY_NAME[name])
    prefix = renderer.create_conversation_prefix_with_tools(TOOLS)
    tokens = renderer.build_generation_prompt([*prefix, Message(role="user", content="Well?")]).to_ints()
    controls = renderer.encoder.controls
    for tag in ("<tool_call>", "</tool_call>", "<｜tool▁sep｜>"):
        shown = get_text_content(prefix[0]).count(tag)
        if tag in controls:
            assert tokens.count(controls[tag]) == shown


@pytest.mark.parametrize("name", ["gpt_oss_no_sysprompt", "gpt_oss_high_reasoning"])
def test_gpt_oss_says_where_calls_go(name):
    renderer = renderer_of(BY_NAME[name])
    prefix = renderer.create_conversation_prefix_with_tools(TOOLS, "Be brief.")
    prompt = renderer.build_generation_prompt([*prefix, Message(role="user", content="Well?")]).to_ints()
    text = renderer.tokenizer.decode(prompt)
    assert text.count("Calls to these tools must go to the commentary channel: 'functions'.<|end|>") == 1
    assert text.count("<|start|>system") == 1
    assert "<|start|>developer<|message|># Instructions\n\nBe brief.\n\n# Tools\n\n## functions" in text
    assert ("Reasoning: high" in text) == name.endswith("high_reasoning")


def test_gpt_oss_names_the_tool_of_a_result():
    renderer = renderer_of(BY_NAME["gpt_oss_no_sysprompt"])
    calls = [
        ToolCall(id=i, function=ToolCall.FunctionBody(name=n, arguments="{}"))
        for i, n in (("1", "f"), ("2", "g"))
    ]
    asked = Message(role="assistant", content="", tool_calls=calls)
    for result, name in (
        (Message(role="tool", content="r", tool_call_id="1"), "f"),
        (Message(role="tool", content="r", tool_call_id="2"), "g"),
        (Message(role="tool", content="r", name="h", tool_call_id="2"), "h"),
        (Message(role="tool", content="r", tool_call_id="3"), "unknown"),
    ):
        prompt = renderer.build_generation_prompt([Message(role="user", content="?"), asked, result])
        assert f"<|start|>functions.{name} to=assistant" in renderer.tokenizer.decode(prompt.to_ints())


@pytest.mark.parametrize("arguments", ["nonsense", "[1]"])
def test_qwen3_5_cannot_write_arguments_that_are_no_object(arguments):
    calls = [ToolCall(function=ToolCall.FunctionBody(name="f", arguments=arguments))]
    asked = Message(role="assistant", content="", tool_calls=calls)
    renderer = renderer_of(BY_NAME["qwen3_5"])
    with pytest.raises(RendererError, match="'f'"):
        renderer.build_generation_prompt([Message(role="user", content="?"), asked])


# --- TypeScript -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "written"),
    [
        ({"type": "string"}, "string"),
        ({"type": "integer"}, "number"),
        ({"type": "number"}, "number"),
        ({"type": "boolean"}, "boolean"),
        ({"type": "string", "nullable": True}, "string | null"),
        ({"type": "string", "enum": ["a", "b"]}, '"a" | "b"'),
        ({"type": ["string", "null"]}, "string | null"),
        ({"type": "array"}, "any[]"),
        ({"type": "array", "items": {"type": "integer"}}, "number[]"),
        ({"type": "array", "items": {"type": "array", "items": {"type": "string"}}}, "string[][]"),
        ({"type": "array", "items": {"type": "string"}, "nullable": True}, "string[] | null"),
        ({"type": "object"}, "object"),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}, "{\na: string}"),
        (
            {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "number"}}},
            "{\na?: string, b?: number}",
        ),
        ({"oneOf": [{"type": "string"}, {"type": "number"}]}, "string | number"),
        ({"oneOf": [{"type": "object"}, {"type": "number"}]}, "any"),
        ({}, "any"),
    ],
)
def test_types(schema: dict[str, Any], written: str):
    assert typescript_type(schema) == written


def test_namespace():
    tool: ToolSpec = {
        "name": "find",
        "description": "Finds things",
        "parameters": {
            "type": "object",
            "properties": {
                "what": {"type": "string", "description": "A thing"},
                "how": {"type": "string", "enum": ["fast", "well"], "default": "fast"},
                "most": {"type": "integer", "default": 3},
            },
            "required": ["what"],
        },
    }
    assert tool_namespace("functions", [tool, NO_PARAMETERS]) == (
        "## functions\n\nnamespace functions {\n\n"
        "// Finds things\ntype find = (_: {\n"
        "// A thing\nwhat: string,\n"
        'how?: "fast" | "well", // default: fast,\n'
        "most?: number, // default: 3,\n"
        "}) => any;\n\n"
        "// The time\ntype now = () => any;\n\n"
        "} // namespace functions"
    )
