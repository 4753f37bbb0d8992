"""Where in a reply the answer is."""

import re
from typing import Literal, get_args

from tinker_cookbook.recipes.math_rl.answer_text import extract_boxed

Extraction = Literal["last_line", "last_number", "tag", "boxed", "whole"]
EXTRACTIONS: tuple[Extraction, ...] = get_args(Extraction)

INSTRUCTIONS: dict[Extraction, str] = {
    "last_line": "Give only the answer.",
    "last_number": "Give only the number.",
    "tag": "Put the answer in <answer></answer>.",
    "boxed": r"Put the answer in \boxed{}.",
    "whole": "",
}
"""What is said after the question. Short, for small models have few tokens."""

_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_LABEL = re.compile(r"^(?:the |final )*answer(?: is)?\s*:?\s*", re.IGNORECASE)


def extract_answer(reply: str, extraction: Extraction) -> str | None:
    """None if the reply has no answer in the asked form."""
    if extraction == "whole":
        return reply.strip() or None
    if extraction == "tag":
        found = _TAG.findall(reply)
        return found[-1].strip() if found else None
    if extraction == "boxed":
        try:
            return extract_boxed(reply)
        except ValueError:
            return None
    if extraction == "last_number":
        found = _NUMBER.findall(re.sub(r"(?<=[0-9]),(?=[0-9]{3})", "", reply))
        return found[-1] if found else None
    lines = [line.strip() for line in reply.splitlines() if line.strip()]
    return _bare(lines[-1]) if lines else None


def _bare(line: str) -> str | None:
    """`**Answer:** Yes.` is Yes."""
    text = _LABEL.sub("", line.replace("**", "").strip())
    return text.removesuffix(".").strip() or None
