"""What the columns of a row mean.

- A conversation: `messages` (role, content) or `conversations` (from, value).
- A prompt and its completion: `prompt`, `instruction` or `question`, with `completion`, `output`, `response` or
  `answer`; an `input` beside them is added to the prompt.
- Plain text: `text`.

A `system` column beside the first two is the system message.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tinker_cookbook.exceptions import ConfigurationError, DataFormatError
from tinker_cookbook.renderers.messages import Message
from tinker_cookbook.supervised.rows.chat import messages_from_json
from tinker_cookbook.supervised.rows.source import Row

Example = list[Message] | str
"""A conversation, or plain text."""

_CHATS = ("messages", "conversations", "conversation")
_PROMPTS = ("prompt", "instruction", "question")
_COMPLETIONS = ("completion", "output", "response", "answer")


class RowFormat(ABC):
    """How the rows of a file become examples."""

    optional: tuple[str, ...] = ()  # columns that are used if there

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Those it needs."""

    @abstractmethod
    def example(self, row: Row) -> Example:
        """DataFormatError, with the reason alone, for a row that does not fit."""

    @abstractmethod
    def __str__(self) -> str: ...

    def fits(self, row: Row) -> bool:
        return all(name in row for name in self.columns)

    def ignored(self, names: Iterable[str]) -> list[str]:
        return sorted(set(names) - {*self.columns, *self.optional})

    def _value(self, row: Row, name: str) -> object:
        if row.get(name) is None:
            raise DataFormatError(f"no {name!r}")
        return row[name]

    def _text(self, row: Row, name: str) -> str:
        value = self._value(row, name)
        if not isinstance(value, str):
            raise DataFormatError(f"{name!r} is {_kind(value)} and not text")
        return value


@dataclass(frozen=True)
class Chat(RowFormat):
    column: str
    optional = ("system",)

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def example(self, row: Row) -> Example:
        messages = messages_from_json(self._value(row, self.column), self.column)
        return [*_system(row), *messages]

    def __str__(self) -> str:
        return f"conversations ({self.column})"


@dataclass(frozen=True)
class PromptCompletion(RowFormat):
    prompt: str
    completion: str
    optional = ("input", "system")

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.prompt, self.completion)

    def example(self, row: Row) -> Example:
        prompt, completion = self._value(row, self.prompt), self._value(row, self.completion)
        if isinstance(prompt, list) and isinstance(completion, list):  # each a piece of a conversation
            pieces = messages_from_json(prompt, self.prompt) + messages_from_json(completion, self.completion)
            return [*_system(row), *pieces]
        question = self._text(row, self.prompt)
        if row.get("input"):
            question = f"{question}\n\n{self._text(row, 'input')}"
        answer = self._text(row, self.completion)
        if not question.strip() or not answer:
            raise DataFormatError(f"{self.prompt if answer else self.completion!r} is empty")
        return [
            *_system(row),
            Message(role="user", content=question),
            Message(role="assistant", content=answer),
        ]

    def __str__(self) -> str:
        return f"prompt and completion ({self.prompt}, {self.completion})"


@dataclass(frozen=True)
class PlainText(RowFormat):
    column: str

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def example(self, row: Row) -> Example:
        text = self._text(row, self.column)
        if not text.strip():
            raise DataFormatError(f"{self.column!r} is empty")
        return text

    def __str__(self) -> str:
        return f"plain text ({self.column})"


KNOWN: tuple[RowFormat, ...] = (
    *(Chat(name) for name in _CHATS),
    *(PromptCompletion(prompt, completion) for prompt in _PROMPTS for completion in _COMPLETIONS),
    PlainText("text"),
)


def detect(name: str, rows: Sequence[Row], columns: Sequence[str] = ()) -> RowFormat:
    """The format of most of these rows. `columns` are names that the user gave, in place of the known ones."""
    present = sorted({column for row in rows for column in row})
    if columns:
        return _named(name, columns, present, rows)
    fitting = [(sum(format.fits(row) for row in rows), format) for format in KNOWN]
    most = max(count for count, _ in fitting)
    if not most:
        raise DataFormatError(
            f"{name} has the columns {_listed(present)}, and none that is known: messages or conversations; prompt and "
            "completion (or instruction and output); text. Name yours: columns=a,b for prompt and completion, "
            "columns=a for a conversation or text"
        )
    return next(format for count, format in fitting if count == most)


def _named(name: str, columns: Sequence[str], present: Sequence[str], rows: Sequence[Row]) -> RowFormat:
    if missing := [column for column in columns if column not in present]:
        raise DataFormatError(f"{name} has no column {_listed(missing)}; it has {_listed(present)}")
    if len(columns) == 2:
        return PromptCompletion(*columns)
    if len(columns) > 2:
        raise ConfigurationError(f"columns={','.join(columns)}: name one column, or prompt and completion")
    (column,) = columns
    is_text = any(isinstance(row.get(column), str) for row in rows)
    return PlainText(column) if is_text else Chat(column)


def _system(row: Row) -> list[Message]:
    system = row.get("system")
    return [Message(role="system", content=system)] if isinstance(system, str) and system else []


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "(none)"


def _kind(value: object) -> str:
    return {list: "a list", dict: "an object", bool: "a truth value"}.get(type(value), "a number")
