"""Every family on a tokenizer that can be made anywhere, and what its tests must know of it.

What a family cannot write, and what it trims, is stated here and nowhere else in the tests.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from tests.tinker_cookbook.renderers.conversations import Abilities
from tests.tinker_cookbook.renderers.small_tokenizers import small_tokenizer
from tinker_cookbook.renderers import Message, Renderer, TextPart, get_renderer
from tinker_cookbook.renderers.base import ensure_list
from tinker_cookbook.tokenizer_utils import Tokenizer, get_tokenizer

FROZEN: dict[str, Any] = json.loads(Path(__file__).with_name("frozen.json").read_text())
TINY = "tinker-engine/tiny-chat"


@dataclass(frozen=True)
class Family:
    name: str
    renderer_name: str
    frozen_as: str | None = None  # whose control tokens it has
    controls: tuple[str, ...] = ()  # if nobody's
    thinking: bool = True
    thinks_last: bool = True  # whether the last answer is written with its thinking
    tools: bool = True
    calls: int = 3  # in one answer, at most
    interleaves: bool = True  # thinking may follow text
    tags_are_text: bool = False  # then text that spells them is read as them
    streams: bool = True
    trim_text: Callable[[str], str] = str
    trim_thinking: Callable[[str], str] = str

    @property
    def abilities(self) -> Abilities:
        return Abilities(
            thinking=0.5 if self.thinking else 0.0,
            tools=self.tools,
            several_calls=self.calls > 1,
            control_strings=tuple(tokenizer_of(self).get_added_vocab()),
        )


def _no_newlines_at_the_edges(text: str) -> str:
    return text.strip("\n")


def _no_newline_before(text: str) -> str:
    return text.lstrip("\n")


QWEN3 = Family(
    "qwen3",
    "qwen3",
    trim_text=_no_newline_before,
    trim_thinking=_no_newlines_at_the_edges,
)
QWEN3_5 = Family(
    "qwen3_5",
    "qwen3_5",
    trim_text=str.strip,
    trim_thinking=str.strip,
)
DEEPSEEK = Family("deepseekv3", "deepseekv3", thinks_last=False)
GPT_OSS = Family("gpt_oss_no_sysprompt", "gpt_oss_no_sysprompt", calls=1, interleaves=False, streams=False)

FAMILIES = (
    Family(
        "role_colon",
        "role_colon",
        controls=("<s>", "</s>"),
        thinking=False,
        tools=False,
        streams=False,
    ),
    Family("chatml", "chatml"),
    Family("chatml on tiny-chat", "chatml"),
    Family(
        "smollm2", "smollm2", controls=("<|endoftext|>", "<|im_start|>", "<|im_end|>"), tags_are_text=True
    ),
    Family("llama3", "llama3", thinking=False, tools=False),
    QWEN3,
    replace(QWEN3, name="qwen3_disable_thinking", renderer_name="qwen3_disable_thinking", thinking=False),
    Family("qwen3_instruct", "qwen3_instruct"),
    QWEN3_5,
    replace(
        QWEN3_5, name="qwen3_5_disable_thinking", renderer_name="qwen3_5_disable_thinking", thinking=False
    ),
    DEEPSEEK,
    replace(DEEPSEEK, name="deepseekv3_disable_thinking", renderer_name="deepseekv3_disable_thinking"),
    replace(DEEPSEEK, name="deepseekv3_thinking", renderer_name="deepseekv3_thinking", thinks_last=True),
    GPT_OSS,
    *(
        replace(GPT_OSS, name=f"gpt_oss_{effort}_reasoning", renderer_name=f"gpt_oss_{effort}_reasoning")
        for effort in ("low", "medium", "high")
    ),
)
NAMES = [family.name for family in FAMILIES]
DISTINCT = [
    n
    for n in NAMES
    if n not in ("deepseekv3_disable_thinking", "gpt_oss_medium_reasoning", "gpt_oss_high_reasoning")
]
"""Without those that are another by name or by one word: enough for tests of many examples."""
BY_NAME = {family.name: family for family in FAMILIES}


@cache
def tokenizer_of(family: Family) -> Tokenizer:
    if family.name == "chatml on tiny-chat":
        return get_tokenizer(TINY)
    if family.controls:
        return small_tokenizer(family.controls, bos=family.controls[0], eos=family.controls[-1])
    own = family.renderer_name.replace("deepseekv3_disable_thinking", "deepseekv3")
    frozen = FROZEN[own]
    return small_tokenizer(frozen["controls"], bos=frozen["bos"], eos=frozen["eos"])


@cache
def renderer_of(family: Family) -> Renderer:
    return get_renderer(family.renderer_name, tokenizer_of(family))


def controls_of(family: Family) -> dict[str, int]:
    return tokenizer_of(family).get_added_vocab()


# --- what of an answer comes back ---------------------------------------------------------------------------


def read_back(family: Family, message: Message) -> dict[str, Any]:
    """An answer as it is after it was written and parsed: the same but for what the family trims."""
    return comparable(
        {**message, "content": _trimmed(family, message)},
        arguments=_xml_arguments if family.renderer_name.startswith("qwen3_5") else lambda a: a,
    )


def comparable(message: Message, arguments: Callable[[dict[str, Any]], Any] = lambda a: a) -> dict[str, Any]:
    """Content as parts without empty ones, arguments as objects."""
    parts = [p for p in ensure_list(message["content"]) if p.get("text") or p.get("thinking")]
    calls = [
        (call.function.name, arguments(json.loads(call.function.arguments)))
        for call in message.get("tool_calls", [])
    ]
    return {"parts": parts, "calls": calls, "unparsed": message.get("unparsed_tool_calls", [])}


def _xml_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """A string is written bare, so one that reads as JSON comes back as what it reads as."""
    return {name: _as_read(value) if isinstance(value, str) else value for name, value in arguments.items()}


def _as_read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _trimmed(family: Family, message: Message) -> list[Any]:
    parts = joined(ensure_list(message["content"]))
    if not family.thinks_last:
        parts = [part for part in parts if part["type"] == "text"]
    if not family.interleaves:
        parts = [
            *(part for part in parts if part["type"] == "thinking"),
            *(part for part in parts if part["type"] == "text"),
        ]
    return joined([_trim(family, part) for part in joined(parts)])


def _trim(family: Family, part: Any) -> Any:
    if part["type"] == "thinking":
        return {**part, "thinking": family.trim_thinking(part["thinking"])}
    return {**part, "text": family.trim_text(part["text"])}


def joined(parts: list[Any]) -> list[Any]:
    """Texts that meet are one; nothing is empty."""
    result: list[Any] = []
    for part in parts:
        if not (part.get("text") or part.get("thinking")):
            continue
        if result and part["type"] == result[-1]["type"] == "text":
            result[-1] = TextPart(type="text", text=result[-1]["text"] + part["text"])
        else:
            result.append(part)
    return result
