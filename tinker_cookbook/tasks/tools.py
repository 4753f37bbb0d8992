"""Questions that need a tool: a calculator for large numbers, a look-up for what nobody can know."""

import json
import random
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinker_cookbook.tasks.arithmetic import last_integer, slip
from tinker_cookbook.tasks.lists import made_up_word
from tinker_cookbook.tasks.types import Message, Problem, Task, ToolSpec, user
from tinker_cookbook.tasks.world import capital

CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_EXPRESSION = re.compile(r"\s*(\d{1,6})\s*([+*-])\s*(\d{1,6})\s*")


def _spec(name: str, description: str, *arguments: str) -> ToolSpec:
    properties = {argument: {"type": "string"} for argument in arguments}
    schema = {"type": "object", "properties": properties, "required": list(arguments)}
    return {"name": name, "description": description, "parameters": schema}


CALCULATOR = _spec("calculator", "works out + - *", "expression")
LOOKUP = _spec("lookup", "finds a number in the book", "name", "field")
FIELDS = ("age", "room", "phone")


def written_call(name: str, arguments: Mapping[str, str]) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': dict(arguments)})}</tool_call>"


@dataclass(frozen=True)
class Call:
    name: str
    arguments: Mapping[str, object]


def parse_call(reply: str) -> Call | None:
    """The one well-formed tool call of a reply, if there is exactly one."""
    found = CALL.findall(reply)
    if len(found) != 1:
        return None
    try:
        content = json.loads(found[0])
    except ValueError:
        return None
    if not (isinstance(content, dict) and set(content) == {"name", "arguments"}):
        return None
    name, arguments = content["name"], content["arguments"]
    return Call(name, arguments) if isinstance(name, str) and isinstance(arguments, dict) else None


def calculate(expression: object) -> str:
    match = _EXPRESSION.fullmatch(expression) if isinstance(expression, str) else None
    if match is None:
        return "error: give two numbers with + - or * between them"
    a, op, b = int(match[1]), match[2], int(match[3])
    return str({"+": a + b, "-": a - b, "*": a * b}[op])


class WithTool(Problem):
    """One call, its result, and an answer that holds the result."""

    tools = (CALCULATOR, LOOKUP)
    question: str

    @property
    @abstractmethod
    def call(self) -> Call:
        """The call that leads to the answer."""

    @property
    @abstractmethod
    def answer(self) -> int: ...

    @abstractmethod
    def run(self, call: Call) -> str:
        """What the tool says to whatever was called."""

    @property
    def prompt(self) -> list[Message]:
        return [user(self.question)]

    def respond(self, replies: Sequence[str]) -> Message | None:
        if len(replies) > 1 or "<tool_call>" not in replies[0]:
            return None
        call = parse_call(replies[0])
        return {"role": "tool", "content": self.run(call) if call else "error: the call is not valid JSON"}

    def check(self, replies: Sequence[str]) -> bool:
        """A right number that was guessed does not count: the tool has to have been used."""
        return self.well_formed(replies) and last_integer(replies[-1]) == self.answer

    def well_formed(self, replies: Sequence[str]) -> bool:
        return (
            len(replies) == 2 and parse_call(replies[0]) is not None and last_integer(replies[1]) is not None
        )

    def right_reply(self, replies: Sequence[str], rng: random.Random) -> str:
        if not replies:
            return written_call(
                self.call.name, {key: str(value) for key, value in self.call.arguments.items()}
            )
        heard = self.respond(replies[:1])
        result = (
            last_integer(heard["content"]) if heard and not heard["content"].startswith("error") else None
        )
        return "I do not know." if result is None else f"The answer is {result}."

    def wrong_reply(self, replies: Sequence[str], rng: random.Random) -> str:
        """The result misread; or before it a guess, a call with a wrong argument, or one that is not JSON."""
        if replies:
            return f"The answer is {slip(self.answer, rng)}."
        arguments = {key: str(value) for key, value in self.call.arguments.items()}
        kind = rng.choice(("guess", "argument", "broken"))
        if kind == "guess":
            return f"The answer is {slip(self.answer, rng)}."
        if kind == "broken":
            return written_call(self.call.name, arguments).replace("}}<", "}<")
        return written_call(self.call.name, self._wrong_arguments(arguments, rng))

    @abstractmethod
    def _wrong_arguments(self, arguments: dict[str, str], rng: random.Random) -> dict[str, str]: ...


@dataclass(frozen=True)
class Calculated(WithTool):
    a: int
    op: str
    b: int
    question: str

    @property
    def key(self) -> str:
        return f"{self.a}{self.op}{self.b}"

    @property
    def call(self) -> Call:
        return Call("calculator", {"expression": f"{self.a}{self.op}{self.b}"})

    @property
    def answer(self) -> int:
        return int(calculate(f"{self.a}{self.op}{self.b}"))

    def run(self, call: Call) -> str:
        if call.name != "calculator" or set(call.arguments) != {"expression"}:
            return "error: there is nothing to find"
        return calculate(call.arguments["expression"])

    def _wrong_arguments(self, arguments: dict[str, str], rng: random.Random) -> dict[str, str]:
        return {"expression": f"{self.a}{self.op}{slip(self.b, rng)}"}


@dataclass(frozen=True)
class LookedUp(WithTool):
    name: str
    field: str
    value: int  # what the book holds
    question: str

    @property
    def key(self) -> str:
        return f"{self.name} {self.field}"

    @property
    def call(self) -> Call:
        return Call("lookup", {"name": self.name, "field": self.field})

    @property
    def answer(self) -> int:
        return self.value

    def run(self, call: Call) -> str:
        if call.name != "lookup" or set(call.arguments) != {"name", "field"}:
            return "error: give a name and a field"
        return str(self.value) if call == self.call else "error: not in the book"

    def _wrong_arguments(self, arguments: dict[str, str], rng: random.Random) -> dict[str, str]:
        return arguments | {"field": rng.choice([field for field in FIELDS if field != self.field])}


CALCULATOR_PHRASINGS = (
    "What is {a} {op} {b}?",
    "Use the calculator: {a} {op} {b}",
    "Work out {a} {op} {b} with a tool.",
)
LOOKUP_PHRASINGS = (
    "What is the {field} of {name}?",
    "Look up the {field} of {name}.",
    "Find {name}'s {field}.",
)


class Tools(Task[WithTool]):
    name = "tools"

    def draw(self, rng: random.Random) -> WithTool:
        if rng.random() < 0.5:
            a, b = sorted((rng.randint(100, 999), rng.randint(100, 999)), reverse=True)
            op = rng.choice("+-*")
            return Calculated(a, op, b, rng.choice(CALCULATOR_PHRASINGS).format(a=a, op=op, b=b))
        name, field = capital(made_up_word(rng, rng.randint(3, 5))), rng.choice(FIELDS)
        question = rng.choice(LOOKUP_PHRASINGS).format(name=name, field=field)
        return LookedUp(name, field, rng.randint(10, 9999), question)
