"""Problems with an answer, from files and data sets in the forms that are about."""

import logging
import random
from collections.abc import Iterable
from typing import NamedTuple

from tinker_cookbook.exceptions import DataFormatError, DataValidationError
from tinker_cookbook.recipes.math_rl.answer_text import extract_boxed, extract_gsm8k_final_answer
from tinker_cookbook.supervised.rows import JoinedRows, Row, Rows, open_rows

logger = logging.getLogger(__name__)

QUESTION_COLUMNS = ("problem", "question", "prompt", "input")
ANSWER_COLUMNS = ("final_answer", "answer", "target", "output")
SOLUTION_COLUMNS = ("solution", "response")
_NAMED = 3  # rows without an answer that are reported one by one


class MathProblem(NamedTuple):
    question: str
    answer: str


def read_problem(row: Row) -> MathProblem:
    """DataFormatError, with the reason alone, if there is no question or no answer in it."""
    question = next((row[name] for name in QUESTION_COLUMNS if _is_text(row.get(name))), None)
    if question is None:
        raise DataFormatError(f"no question under any of {', '.join(QUESTION_COLUMNS)}")
    for name in ANSWER_COLUMNS:
        answer = row.get(name)
        if isinstance(answer, int | float) and not isinstance(answer, bool):
            return MathProblem(question, str(answer))
        if _is_text(answer):
            return MathProblem(question, _final_answer(str(answer)))
    for name in SOLUTION_COLUMNS:
        if _is_text(row.get(name)):
            return MathProblem(question, _boxed(row[name], name))
    columns = ", ".join((*ANSWER_COLUMNS, *SOLUTION_COLUMNS))
    raise DataFormatError(f"no answer under any of {columns}")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _final_answer(answer: str) -> str:
    """Of GSM8K the number after ####, of a worked solution what is boxed, else all of it."""
    if "####" in answer:
        return extract_gsm8k_final_answer(answer)
    if r"\boxed" in answer:
        return _boxed(answer, "answer")
    return answer.strip()


def _boxed(solution: str, column: str) -> str:
    try:
        return extract_boxed(solution)
    except ValueError as error:
        raise DataFormatError(f"{column!r}: {error}") from error


def read_problems(*sources: tuple[str, str | None, str]) -> list[MathProblem]:
    """Of each (file, folder or name on the hub, subset, split). Rows without an answer are left out and counted."""
    return problems_of([open_rows(path, subset=subset, split=split) for path, subset, split in sources])


def problems_of(parts: Iterable[Rows]) -> list[MathProblem]:
    parts = list(parts)
    rows = JoinedRows(" and ".join(part.name for part in parts[:2]), parts)
    found: list[MathProblem] = []
    left_out = 0
    for index in range(len(rows)):
        try:
            found.append(read_problem(rows[index]))
        except (DataFormatError, ValueError) as error:  # ValueError: a #### with nothing after it
            left_out += 1
            if left_out <= _NAMED:
                logger.warning("left out %s: %s", rows.where(index), error)
    if not found:
        raise DataValidationError(f"none of the {len(rows)} rows of {rows.name} has a question and an answer")
    if left_out:
        logger.warning("%s: left out %d of %d rows", rows.name, left_out, len(rows))
    return found


def hold_out(
    problems: list[MathProblem], count: int, seed: int
) -> tuple[list[MathProblem], list[MathProblem]]:
    """Train and test; a question that is there twice is in one of them."""
    questions = list(dict.fromkeys(problem.question for problem in problems))
    if count >= len(questions):
        raise DataValidationError(
            f"test_size={count} leaves nothing to train on: there are {len(questions)} different questions"
        )
    held_out = set(random.Random(f"hold out/{seed}").sample(questions, count))
    train = [problem for problem in problems if problem.question not in held_out]
    test = {problem.question: problem for problem in problems if problem.question in held_out}
    return train, list(test.values())
