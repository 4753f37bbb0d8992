"""Conversations as the tiny model reads them: ChatML turns, with tags for thinking and tool calls inside.

`TEMPLATE` is the same thing for programs that take a Hugging Face chat template; a test compares the two.
"""

from collections.abc import Iterable, Iterator, Sequence

from tinker_cookbook.tasks import Message, ToolSpec

TURN, END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
# In the order of their ids, from 0 on. The reserved ones are for whoever trains the model further.
SPECIAL_TOKENS = (
    END_OF_TEXT,
    TURN,
    END,
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<|reserved_0|>",
    "<|reserved_1|>",
)

# Newlines that count are written as such: programs differ in which others they drop.
TEMPLATE = """\
{%- macro signature(tool) -%}
{%- set function = tool.function if tool.function is defined else tool -%}
{{- '\\n- ' + function.name + '(' + (function.parameters.properties.keys() | join(', ')) + '): ' -}}
{{- function.description -}}
{%- endmacro -%}
{%- set own_system = messages and messages[0].role == 'system' -%}
{%- if tools -%}
{{- '<|im_start|>system\\n' + (messages[0].content + '\\n\\n' if own_system else '') + 'Tools:' -}}
{%- for tool in tools -%}{{- signature(tool) -}}{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in (messages[1:] if tools and own_system else messages) -%}
{{- '<|im_start|>' + message.role + '\\n' -}}
{%- if message.reasoning_content -%}
{{- '<think>' + message.reasoning_content + '</think>' -}}
{%- endif -%}
{{- message.content or '' -}}
{%- for call in message.tool_calls or [] -%}
{%- set function = call.function if call.function is defined else call -%}
{%- set given = function.arguments -%}
{{- '<tool_call>{"name": "' + function.name + '", "arguments": ' -}}
{{- (given if given is string else given | tojson) + '}</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


def with_tools(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[Message]:
    """The messages with the tools told in the system turn, which is made if there is none."""
    if not tools:
        return list(messages)
    told = "Tools:" + "".join(
        f"\n- {tool['name']}({', '.join(_arguments(tool))}): {tool['description']}" for tool in tools
    )
    if messages and messages[0]["role"] == "system":
        return [{"role": "system", "content": f"{messages[0]['content']}\n\n{told}"}, *messages[1:]]
    return [{"role": "system", "content": told}, *messages]


def _arguments(tool: ToolSpec) -> Iterable[str]:
    properties = tool["parameters"]["properties"]
    assert isinstance(properties, dict)
    return properties


def pieces(messages: Sequence[Message]) -> Iterator[tuple[str, bool]]:
    """The text in pieces, each with whether a model in the assistant's place would have to write it."""
    for message in messages:
        yield f"{TURN}{message['role']}\n", False
        yield f"{message['content']}{END}", message["role"] == "assistant"
        yield "\n", False


def prompt_text(messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> str:
    """What comes before the assistant's next turn."""
    told = "".join(text for text, _ in pieces(with_tools(messages, tools)))
    return f"{told}{TURN}assistant\n"
