"""What is graded and by what: conversations to go on with, and the items of a rubric for each."""

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tinker_cookbook.exceptions import ConfigurationError, DataFormatError
from tinker_cookbook.renderers.messages import (
    Message,
    ensure_list,
    format_content_as_string,
    message_to_jsonable,
    remove_thinking,
)
from tinker_cookbook.supervised.rows import open_rows
from tinker_cookbook.supervised.rows.chat import messages_from_json
from tinker_cookbook.utils.atomic_file import write_text_atomically

SCORE_PATTERN = "<score>(.*?)</score>"
FORMAT_INSTRUCTION = (
    "Answer with a score from 0 to 1 between <score> and </score>: 0 is not at all, 1 is fully."
)
GRADER_PROMPT = (
    "Here is a conversation.\n\n{conversation}\n\nGrade the last reply of the assistant by this rubric, and by nothing "
    "else:\n\n{rubric}\n\n{format}"
)
_PLACE = re.compile(r"\{(conversation|question|reply|rubric|format)\}")


@dataclass(frozen=True)
class Rubric:
    """One thing to grade. The prompt may have {conversation}, {question}, {reply}, {rubric} and {format} in it."""

    rubric_str: str
    extraction_regex: str = SCORE_PATTERN  # its first group, last match, is the grade
    grader_output_format_instruction: str = FORMAT_INSTRUCTION
    grader_prompt: str = GRADER_PROMPT
    grades: dict[str, float] = field(
        default_factory=dict
    )  # score of each grade that is a word; empty: numbers
    lowest: float = 0.0  # grades that are numbers, from here to there, become scores from 0 to 1
    highest: float = 1.0

    def __post_init__(self):
        try:
            groups = re.compile(self.extraction_regex).groups
        except re.error as error:
            raise ConfigurationError(
                f"extraction_regex {self.extraction_regex!r} is no pattern: {error}"
            ) from error
        if groups < 1:
            raise ConfigurationError(f"extraction_regex {self.extraction_regex!r} needs a group: (...)")
        if not self.lowest < self.highest:
            raise ConfigurationError(f"lowest={self.lowest} must be less than highest={self.highest}")

    def prompt(self, convo: Sequence[Message]) -> list[Message]:
        """What the grader is asked about the last message of `convo`."""
        texts = {
            "conversation": "\n\n".join(f"{message['role']}: {text_of(message)}" for message in convo),
            "question": text_of(convo[-2]) if len(convo) > 1 else "",
            "reply": text_of(convo[-1]),
            "rubric": self.rubric_str,
            "format": self.grader_output_format_instruction,
        }
        # In one pass: a reply that has {rubric} in it gets no rubric.
        return [Message(role="user", content=_PLACE.sub(lambda place: texts[place[1]], self.grader_prompt))]

    def score(self, grader_said: str) -> float | None:
        """From 0 to 1, however large the grade; None if there is none."""
        found = re.findall(self.extraction_regex, grader_said, re.DOTALL)
        if not found:
            return None
        grade = (found[-1] if isinstance(found[-1], str) else found[-1][0]).strip()
        if self.grades:
            return _clamped(self.grades[grade]) if grade in self.grades else None
        try:
            number = float(grade)
        except ValueError:
            return None
        if not math.isfinite(number):
            return None
        return _clamped((number - self.lowest) / (self.highest - self.lowest))


def _clamped(score: float) -> float:
    return min(1.0, max(0.0, score))


def text_of(message: Message) -> str:
    """Content that has parts, as text; what was thought is nobody's business."""
    return format_content_as_string(remove_thinking(ensure_list(message["content"])))


@dataclass(frozen=True)
class RubricBasedDatapoint:
    """A conversation that ends before the reply to be graded."""

    convo: list[Message]
    rubric_items: list[Rubric]

    def to_json(self) -> dict[str, Any]:
        return {
            "convo": [message_to_jsonable(message) for message in self.convo],
            "rubric_items": [asdict(item) for item in self.rubric_items],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "RubricBasedDatapoint":
        """DataFormatError, with the reason alone, if it is none."""
        convo = messages_from_json(value.get("convo"), "convo")
        items = value.get("rubric_items")
        if not isinstance(items, list) or not items:
            raise DataFormatError("'rubric_items' must be a list with at least one item")
        try:
            return cls(convo, [Rubric(**item) for item in items])
        except (TypeError, ConfigurationError) as error:
            raise DataFormatError(f"'rubric_items': {error}") from error


def write_datapoints(path: Path, datapoints: Iterable[RubricBasedDatapoint]) -> None:
    lines = [json.dumps(datapoint.to_json(), ensure_ascii=False) + "\n" for datapoint in datapoints]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(path, "".join(lines))


def read_datapoints(path: str) -> list[RubricBasedDatapoint]:
    rows = open_rows(path)
    found: list[RubricBasedDatapoint] = []
    for index in range(len(rows)):
        try:
            found.append(RubricBasedDatapoint.from_json(rows[index]))
        except DataFormatError as error:
            raise DataFormatError(f"{rows.where(index)}: {error}") from error
    return found
