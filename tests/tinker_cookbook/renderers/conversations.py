"""Conversations of every kind, from a seed: what renderers and chat templates are compared on."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from tinker_cookbook.renderers import Message, TextPart, ThinkingPart, ToolCall, ToolSpec

PLAIN = (
    "Hello.",
    "What is 2 + 2?",
    "It is 4, I think.",
    "def f(x):\n    return x",
    "a\n\nb",
    "1. one\n2. two",
)
UNICODE = ("Grüße, 世界!", "naïve café", "👩‍👩‍👧‍👦 ok", "עברית و عربي", "\u200bzero\u00a0width", "𝔘𝔫𝔦")
BLANK_EDGES = ("\nleading", "trailing\n", "  both  ", "\n\n", " ", "tab\t")
THOUGHTS = ("Let me see.", "First a,\nthen b.", "2 + 2 is 4", "hmm… 世界")
ARGUMENTS = (
    {"a": 1, "b": [1, 2]},
    {"city": "Zürich"},
    {},
    {"x": {"y": None}, "ok": True},
    {"text": "two\nlines"},
)
NAMES = ("get_weather", "add-numbers", "math.sqrt")

TOOLS: list[ToolSpec] = [
    {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name of the city"},
                "unit": {"type": "string", "enum": ["C", "F"]},
            },
            "required": ["city"],
        },
    },
    {
        "name": "add",
        "description": "Adds numbers",
        "parameters": {
            "type": "object",
            "properties": {"numbers": {"type": "array", "items": {"type": "number"}}},
            "required": ["numbers"],
        },
    },
]


@dataclass(frozen=True)
class Abilities:
    """What a family can say."""

    system: bool = True
    thinking: float = 0.5  # how often
    tools: bool = True
    several_calls: bool = True
    control_strings: tuple[str, ...] = ()


@dataclass
class Conversation:
    messages: list[Message]
    tools: list[ToolSpec] = field(default_factory=list)
    features: set[str] = field(default_factory=set)

    @property
    def last_user(self) -> int:
        return max((i for i, m in enumerate(self.messages) if m["role"] == "user"), default=-1)


def conversations(abilities: Abilities, count: int, seed: int = 0) -> Iterator[Conversation]:
    """Each ends in an answer; without it, it is a question."""
    for i in range(count):
        yield _Writer(random.Random(f"{seed}/{i}"), abilities).write()


class _Writer:
    def __init__(self, rng: random.Random, abilities: Abilities):
        self.rng = rng
        self.can = abilities
        self.features: set[str] = set()

    def write(self) -> Conversation:
        tools = TOOLS if self.can.tools and self.rng.random() < 0.15 else []
        messages: list[Message] = []
        if self.can.system and self.rng.random() < 0.4:
            self.features.add("system")
            messages.append(Message(role="system", content=self.text()))
        turns = self.rng.choice((1, 1, 2, 3))
        if turns > 1:
            self.features.add("several turns")
        if tools:
            self.features.add("tools declared")
        for _ in range(turns):
            messages += self.turn()
        return Conversation(messages, tools, self.features)

    def turn(self) -> list[Message]:
        messages = [Message(role="user", content=self.text())]
        while self.can.tools and self.rng.random() < 0.25:
            messages += self.tool_use()
        return [*messages, self.answer()]

    def tool_use(self) -> list[Message]:
        self.features.add("tool calls")
        count = self.rng.choice((1, 2)) if self.can.several_calls else 1
        names = [self.rng.choice(NAMES) for _ in range(count)]
        calls = [
            ToolCall(
                id=f"call_{i}",
                function=ToolCall.FunctionBody(
                    name=name, arguments=json.dumps(self.rng.choice(ARGUMENTS), ensure_ascii=False)
                ),
            )
            for i, name in enumerate(names)
        ]
        if count > 1:
            self.features.add("several calls and results")
        asked = self.answer(empty=self.rng.random() < 0.6)
        asked["tool_calls"] = calls
        results = [
            Message(role="tool", content=self.text(), name=name, tool_call_id=f"call_{i}")
            for i, name in enumerate(names)
        ]
        return [asked, *results]

    def answer(self, *, empty: bool = False) -> Message:
        text = "" if empty else self.text()
        if self.rng.random() >= self.can.thinking:
            return Message(role="assistant", content=text)
        thinking = self.rng.choice(THOUGHTS)
        self.features.add("thinking")
        parts = [ThinkingPart(type="thinking", thinking=thinking)]
        return Message(
            role="assistant", content=[*parts, TextPart(type="text", text=text)] if text else [*parts]
        )

    def text(self) -> str:
        kind = self.rng.random()
        if kind < 0.6:
            return self.rng.choice(PLAIN)
        if kind < 0.8:
            self.features.add("unicode")
            return self.rng.choice(UNICODE)
        if kind < 0.9:
            self.features.add("blanks at the edges")
            return self.rng.choice(BLANK_EDGES)
        if kind < 0.98:
            self.features.add("empty text")
            return ""
        if not self.can.control_strings:
            return self.rng.choice(PLAIN)
        self.features.add("text that spells a control token")
        return f"say {self.rng.choice(self.can.control_strings)} now"
