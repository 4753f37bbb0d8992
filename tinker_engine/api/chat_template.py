"""A model's own chat template: messages → the text that the model continues.

Renders what `transformers` renders, without it: this process must stay small. A template is a stranger's
program, so it runs in Jinja's sandbox.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tinker_engine.errors import InputError, ModelError
from tinker_engine.model.tokenizer import read_json

# What `extra` cannot replace; "self" is in the way of Python's calls.
GIVEN = frozenset({"messages", "tools", "documents", "add_generation_prompt", "self"})
_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_REASONING = ("reasoning_content", "thinking", "reasoning")
# What a program over foreign data can run into. Anything else is a fault of ours.
_FAILURES = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


class ChatTemplate:
    def __init__(self, templates: Mapping[str, str], tokens: Mapping[str, str] | None = None):
        """`templates` by name, of which "default" and "tool_use" mean something; `tokens` as {"bos_token": ...}."""
        environment = _environment()
        self._templates = {name: _compile(environment, name, text) for name, text in templates.items()}
        self._tokens = dict(tokens or {})

    @classmethod
    def from_folder(cls, folder: Path) -> "ChatTemplate":
        config = read_json(folder / "tokenizer_config.json")
        templates = _templates(folder, config)
        if not templates:
            raise ModelError(
                f"{folder} has no chat template, so it is a base model: ask it for completions of a text, or put "
                "the template it was trained with there as chat_template.jinja"
            )
        return cls(templates, _tokens(read_json(folder / "special_tokens_map.json") | config))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **extra: Any,
    ) -> str:
        """`extra` are further variables that the template knows, such as enable_thinking."""
        template = self._choose(tools)
        try:
            return template.render(
                messages=[_with_reasoning(message) for message in messages],
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **(self._tokens | extra),
            )
        except _FAILURES as error:
            raise InputError("messages", f"the model's chat template does not take them: {error}") from error

    def _choose(self, tools: Sequence[Mapping[str, Any]] | None) -> Template:
        if tools is not None and "tool_use" in self._templates:
            return self._templates["tool_use"]
        if "default" not in self._templates:
            names = ", ".join(sorted(self._templates))
            raise ModelError(f"none of the model's chat templates ({names}) is named default: rename one")
        return self._templates["default"]


class _GenerationBlock(Extension):
    """`{% generation %}` marks what the model writes, for those who train on it; here it is just its content."""

    tags = {"generation"}  # noqa: RUF012  (Jinja declares it as an instance attribute)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _compile(environment: ImmutableSandboxedEnvironment, name: str, text: str) -> Template:
    try:
        return environment.from_string(text)
    except TemplateError as error:
        raise ModelError(f"the chat template {name!r} is no valid Jinja: {error}") from error


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own escapes HTML, which models were not trained on."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _with_reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    """Templates differ in what they call it: what came under one name is there under those they read."""
    given = next((message[key] for key in _REASONING if message.get(key) is not None), None)
    if given is None:
        return dict(message)
    return {"thinking": given} | dict(message) | {"reasoning_content": given}


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """By name, of all the places where a folder may have them; a file of its own wins."""
    named = _named(config.get("chat_template"), folder / "tokenizer_config.json")
    if not named:
        path = folder / "chat_template.json"
        named = _named(read_json(path).get("chat_template"), path)
    files = {path.stem: path for path in sorted(folder.glob("additional_chat_templates/*.jinja"))}
    if (default := folder / "chat_template.jinja").is_file():
        files["default"] = default
    return named | {name: path.read_text(encoding="utf-8") for name, path in files.items()}


def _named(value: Any, path: Path) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    try:
        named = {entry["name"]: entry["template"] for entry in value}
    except (TypeError, KeyError) as error:
        raise ModelError(f"{path}: chat_template must be a text or a list of name and template") from error
    return named


def _tokens(config: Mapping[str, Any]) -> dict[str, str]:
    found = {name: config.get(name) for name in _TOKENS}
    texts = {
        name: token.get("content") if isinstance(token, dict) else token for name, token in found.items()
    }
    return {name: text for name, text in texts.items() if isinstance(text, str)}
