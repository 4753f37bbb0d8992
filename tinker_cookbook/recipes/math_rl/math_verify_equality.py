"""Whether two answers are equal, by the package math-verify; in a process that can be killed, see `bounded_calls`."""

from typing import Any

import math_verify as _package  # pyright: ignore[reportMissingImports]

math_verify: Any = _package  # its own types leave out that a time limit can be None

# LaTeX alone: what math-verify reads as plain expressions it hands to sympy's reader, which evaluates Python.
_LATEX: list[Any] = [math_verify.LatexExtractionConfig()]


def grade(given: str, truth: str) -> bool:
    # No time limits of its own, which are signals: the process has one.
    readings = [
        math_verify.parse(f"\\boxed{{{text}}}", extraction_config=_LATEX, parsing_timeout=None)
        for text in (truth, given)
    ]
    if not all(readings):
        return False
    return bool(math_verify.verify(*readings, timeout_seconds=None))


def warm_up() -> None:
    """Building its grammar takes most of a second."""
    grade(r"\frac{1}{2}x", r"\frac{x}{2}")
