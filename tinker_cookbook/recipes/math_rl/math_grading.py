r"""Whether an answer is right, for answers that a model wrote: nothing of them is run, and grading takes no longer than
it may.

    safe_grade("\\frac{1}{2}", "0.5")                       # True
    await safe_grade_async(given, truth, grader="math_verify")

Most answers are decided here, on their text or as numbers. What needs a solver goes to a process that is killed when
time is up.
"""

import logging
from typing import Literal

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.bounded_calls import (
    CallFailedError,
    CallTimeoutError,
    CallUnavailableError,
    shared_calls,
)
from tinker_cookbook.recipes.math_rl.answer_shapes import Verdict, same_answer, split_tuple
from tinker_cookbook.recipes.math_rl.answer_text import (
    extract_boxed,
    extract_gsm8k_final_answer,
    normalize_answer,
)
from tinker_cookbook.recipes.math_rl.expressions import LONGEST

__all__ = [
    "Grader",
    "extract_boxed",
    "extract_gsm8k_final_answer",
    "grade_answer",
    "grade_answer_math_verify",
    "normalize_answer",
    "safe_grade",
    "safe_grade_async",
    "split_tuple",
]

logger = logging.getLogger(__name__)

Grader = Literal["sympy", "math_verify"]
TARGETS: dict[Grader, str] = {
    "sympy": "tinker_cookbook.recipes.math_rl.sympy_equality:grade",
    "math_verify": "tinker_cookbook.recipes.math_rl.math_verify_equality:grade",
}
PACKAGES = {"math_verify": "math-verify", "latex2sympy2_extended": "math-verify", "sympy": "sympy"}


def safe_grade(given: str | None, truth: str, grader: Grader = "sympy", timeout: float = 1.0) -> bool:
    """An answer that cannot be read, or not be graded within `timeout` seconds, is wrong. Blocks the caller."""
    verdict, texts = _without_solver(given, truth, grader)
    if verdict is not None:
        return verdict
    try:
        return bool(shared_calls().call(TARGETS[grader], *texts, timeout=timeout))
    except (CallTimeoutError, CallFailedError, CallUnavailableError) as error:
        return _wrong_or_raise(error, texts)


async def safe_grade_async(
    given: str | None, truth: str, grader: Grader = "sympy", timeout: float = 1.0
) -> bool:
    """As `safe_grade`, while the event loop goes on."""
    verdict, texts = _without_solver(given, truth, grader)
    if verdict is not None:
        return verdict
    try:
        return bool(await shared_calls().call_async(TARGETS[grader], *texts, timeout=timeout))
    except (CallTimeoutError, CallFailedError, CallUnavailableError) as error:
        return _wrong_or_raise(error, texts)


def grade_answer(given: str | None, truth: str) -> bool:
    """By sympy, in this process and without a time limit: for answers that you trust."""
    verdict, texts = _without_solver(given, truth, "sympy")
    if verdict is not None:
        return verdict
    from tinker_cookbook.recipes.math_rl import sympy_equality

    return sympy_equality.grade(*texts)


def grade_answer_math_verify(given: str | None, truth: str) -> bool:
    """By math-verify, likewise."""
    verdict, texts = _without_solver(given, truth, "math_verify")
    if verdict is not None:
        return verdict
    try:
        from tinker_cookbook.recipes.math_rl import math_verify_equality
    except ModuleNotFoundError as error:
        raise _to_install(error.name) from error
    return math_verify_equality.grade(*texts)


def _without_solver(given: str | None, truth: str, grader: Grader) -> tuple[Verdict, tuple[str, str]]:
    """The verdict if it takes no solver, and else what to give to it."""
    if grader not in TARGETS:
        raise ConfigurationError(f"there is no grader {grader!r}; graders are {', '.join(TARGETS)}")
    if given is None or not given.strip():
        return False, ("", "")
    if given.strip() == truth.strip():
        return True, ("", "")
    if len(given) > LONGEST or len(truth) > LONGEST:  # no answer is that long
        return False, ("", "")
    normal_given, normal_truth = normalize_answer(given) or "", normalize_answer(truth) or ""
    verdict = same_answer(normal_given, normal_truth, lambda ours, theirs: None)
    if grader == "sympy" or verdict is True:
        return verdict, (normal_given, normal_truth)
    # math-verify has a reader of its own and thinks otherwise about some that we hold to be wrong.
    return (False if "__" in given else None), (given, truth)


def _wrong_or_raise(error: Exception, texts: tuple[str, str]) -> bool:
    if isinstance(error, CallUnavailableError):
        if error.missing in PACKAGES:
            raise _to_install(error.missing) from error
        raise error
    logger.warning("graded as wrong: %s (answer %.80r, reference %.80r)", error, *texts)
    return False


def _to_install(package: str | None) -> ConfigurationError:
    name = PACKAGES.get(package or "", package)
    return ConfigurationError(
        f"grader=math_verify needs a package; type: pip install {name}. Or use grader=sympy"
    )
