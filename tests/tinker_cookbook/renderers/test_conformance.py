"""Renderers against their models' own chat templates, where the models' tokenizers are at hand.

They are looked for in the folder that TINKER_TOKENIZERS names, else in `shared/assets/tokenizers` beside the
repository.
"""

import os
import re
from pathlib import Path

import pytest

from scripts.renderer_conformance import (
    FAMILIES,
    ROOT,
    Comparison,
    Family,
    compare,
    load,
    reasons,
    unexplained,
)
from tests.tinker_cookbook.renderers.conversations import TOOLS, Conversation
from tinker_cookbook.renderers import Message, ToolSpec
from tinker_cookbook.tokenizer_utils import Tokenizer

FOLDER = Path(os.environ.get("TINKER_TOKENIZERS") or ROOT.parent / "shared" / "assets" / "tokenizers")
COUNT = 40

MORE_TOOLS: list[ToolSpec] = [
    {"name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}},
    {
        "name": "find",
        "description": 'Finds "things" & <more>',
        "parameters": {
            "type": "object",
            "properties": {
                "what": {"type": "string", "description": "Größe"},
                "how": {"type": "string", "enum": ["fast", "well"], "default": "fast"},
                "most": {"type": "integer", "default": 3},
                "exact": {"type": "boolean", "default": True},
                "among": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"id": {"type": "integer"}}},
                },
                "within": {
                    "type": "object",
                    "properties": {"from": {"type": "number"}, "to": {"type": "number"}},
                    "required": ["from"],
                },
                "tags": {"type": "array", "items": {"type": "string"}},
                "maybe": {"type": ["string", "null"]},
            },
            "required": ["what"],
        },
    },
]


def tokenizer_for(family: Family) -> Tokenizer:
    here = "/" in family.tokenizer
    name = "qwen3" if family.tokenizer == "qwen3_instruct" else family.tokenizer
    if not here and not (FOLDER / name).is_dir():
        pytest.skip(f"no tokenizer {name} in {FOLDER}; name its folder in TINKER_TOKENIZERS")
    return load(family.tokenizer, FOLDER)


def without_stray_blanks(text: str) -> str:
    """gpt-oss's template breaks the line within a nested object, by an oversight of its own."""
    return re.sub(r": \n {16}", ": ", text)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.renderer)
def test_as_the_template(family: Family):
    tokenizer = tokenizer_for(family)
    differing = unexplained(family, compare(family, tokenizer, COUNT, seed=7))
    assert not [(o.kind, tokenizer.decode(o.ours), o.text) for o in differing]


@pytest.mark.parametrize(
    "family", [f for f in FAMILIES if f.abilities.tools], ids=lambda family: family.renderer
)
def test_other_tools(family: Family):
    tokenizer = tokenizer_for(family)
    messages = [Message(role="user", content="Hello."), Message(role="assistant", content="Hm.")]
    for tools in (MORE_TOOLS, MORE_TOOLS[:1], [*TOOLS, *MORE_TOOLS]):
        for system in ([], [Message(role="system", content="Be brief.")]):
            conversation = Conversation([*system, *messages], tools)
            if not reasons(family, conversation):
                outcome = Comparison(family, tokenizer).prompt(conversation)
                assert tokenizer.decode(outcome.ours) == without_stray_blanks(outcome.text)
