import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tinker_engine.api.chat_template import ChatTemplate
from tinker_engine.errors import InputError, ModelError
from tinker_engine.model import tiny

USER = {"role": "user", "content": "What is <b>12 & 30</b>? ünïcode"}
TOOL = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "works out + - *",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string", "description": "é <"}},
        },
    },
}
CALL = {
    "id": "call_000001",
    "type": "function",
    "function": {"name": "calculator", "arguments": {"expression": "é"}},
}
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "one turn": {"messages": [USER]},
    "finished": {
        "messages": [USER, {"role": "assistant", "content": "42"}],
        "add_generation_prompt": False,
    },
    "system": {"messages": [{"role": "system", "content": "Be brief."}, USER]},
    "tools": {"messages": [USER], "tools": [TOOL]},
    "system and tools": {"messages": [{"role": "system", "content": "Be brief."}, USER], "tools": [TOOL]},
    "tool used": {
        "messages": [
            USER,
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "name": "calculator", "tool_call_id": "call_000001", "content": "42"},
        ],
        "tools": [TOOL],
    },
    "reasoning": {
        "messages": [USER, {"role": "assistant", "content": "42", "reasoning_content": "12 + 30"}, USER]
    },
    "no thinking": {"messages": [USER], "enable_thinking": False},
}


def _folders() -> list[Path]:
    """The tiny model, and the tokenizer folders in the directory that TINKER_ENGINE_TEST_TOKENIZERS names."""
    more = os.environ.get("TINKER_ENGINE_TEST_TOKENIZERS")
    return [
        tiny.FOLDER,
        *(sorted(path.parent for path in Path(more).glob("*/tokenizer.json")) if more else []),
    ]


@pytest.mark.parametrize("folder", _folders(), ids=lambda folder: folder.name)
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_renders_what_transformers_renders(folder: Path, name: str):
    arguments = {"add_generation_prompt": True} | CONVERSATIONS[name]
    try:
        expected = AutoTokenizer.from_pretrained(folder).apply_chat_template(
            arguments.pop("messages"), tokenize=False, **arguments
        )
    except Exception:  # whatever the template makes of this conversation
        with pytest.raises(InputError, match="messages"):
            ChatTemplate.from_folder(folder).render(**CONVERSATIONS[name])
    else:
        assert ChatTemplate.from_folder(folder).render(**CONVERSATIONS[name]) == expected


def make_folder(tmp_path: Path, **config: Any) -> Path:
    shutil.copy(tiny.FOLDER / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def test_everything_transformers_offers_to_templates(tmp_path: Path):
    template = """
    {%- for message in messages %}
        {%- if loop.index0 == 1 %}{% continue %}{% endif %}
        {%- generation %}{{ bos_token }}{{ message.content | tojson }}{{ eos_token }}{% endgeneration %}
    {%- endfor %}
    {%- set ns = namespace(n=0) %}{%- set ns.n = 2 %}{{ ns.n }}
    {{- [1, {'b': 1, 'a': '<é>'}] | tojson(indent=2, sort_keys=true) }}
    {{- strftime_now('%Y') | length }}{{ flag }}{{ documents is none }}{{ tools is none }}{{ absent is defined }}
    {{- dict(a=1) }}"""
    folder = make_folder(
        tmp_path,
        tokenizer_class="PreTrainedTokenizerFast",
        chat_template=template,
        bos_token={"__type": "AddedToken", "content": "<|im_start|>", "special": True},
        eos_token="<|im_end|>",
    )
    messages = [USER, USER, USER]
    expected = AutoTokenizer.from_pretrained(folder).apply_chat_template(messages, tokenize=False, flag="on")
    assert (
        ChatTemplate.from_folder(folder).render(messages, add_generation_prompt=False, flag="on") == expected
    )


def test_named_templates_are_chosen_as_transformers_does(tmp_path: Path):
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    template = ChatTemplate.from_folder(make_folder(tmp_path, chat_template=named))
    assert template.render([USER]) == "plain"
    assert template.render([USER], tools=[TOOL]) == "with tools"


def test_a_file_of_its_own_wins(tmp_path: Path):
    folder = make_folder(tmp_path, chat_template="from the config")
    assert ChatTemplate.from_folder(folder).render([USER]) == "from the config"
    (folder / "chat_template.jinja").write_text("from the file")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("from another file")
    template = ChatTemplate.from_folder(folder)
    assert template.render([USER]) == "from the file"
    assert template.render([USER], tools=[TOOL]) == "from another file"


def test_what_a_template_refuses_is_the_callers_to_change(tmp_path: Path):
    template = ChatTemplate({"default": "{{ raise_exception('Conversation roles must alternate') }}"})
    with pytest.raises(InputError, match=r"messages: .*Conversation roles must alternate"):
        template.render([USER])


@pytest.mark.parametrize(
    "text",
    [
        "{{ messages[0].content + none }}",
        "{{ messages[7].content }}",
        "{{ 1 / 0 }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ absent.attribute.of_it }}",
    ],
)
def test_a_template_that_fails_or_reaches_out_says_so(text: str):
    with pytest.raises(InputError, match="chat template"):
        ChatTemplate({"default": text}).render([USER])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "no chat template"),
        ({"chat_template": "{% if %}"}, "no valid Jinja"),
        ({"chat_template": [{"name": "default"}]}, "list of name and template"),
        ({"chat_template": 3}, "list of name and template"),
    ],
)
def test_a_folder_without_a_usable_template_is_refused(tmp_path: Path, config: dict[str, Any], message: str):
    with pytest.raises(ModelError, match=message):
        ChatTemplate.from_folder(make_folder(tmp_path, **config))


def test_templates_without_a_default_are_refused(tmp_path: Path):
    template = ChatTemplate({"rag": "text"})
    with pytest.raises(ModelError, match="default"):
        template.render([USER])
