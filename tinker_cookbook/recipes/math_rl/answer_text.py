"""Answers as text: taking them out of a reply, and writing them one way whatever way they were written.

Everything here is linear in the length of the text and runs nothing.
"""

import re

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BARE_BOX = re.compile(r"\\(?:boxed|fbox)\s+([^\s${}]+)")


def extract_boxed(text: str) -> str:
    r"""What is in the last `\boxed{...}` that is closed, or after the last `\boxed `. ValueError if there is none.

    Braces that belong to no box do no harm, wherever they are.
    """
    opens = {match.end() - 1 for match in _BOX.finditer(text)}
    found: tuple[int, str] | None = None  # where it ends, and what is in it
    pending: list[int] = []
    for brace in re.finditer(r"\\[{}]|[{}]", text):
        at = brace.start()
        if brace[0] == "{":
            pending.append(at)
        elif brace[0] == "}" and pending and (start := pending.pop()) in opens:
            found = (at, text[start + 1 : at])
    for match in _BARE_BOX.finditer(text):
        if found is None or match.start() > found[0]:
            found = (match.end(), match[1])
    if found is None:
        raise ValueError("the text has no \\boxed{...}")
    return found[1].strip()


def extract_gsm8k_final_answer(text: str) -> str:
    """What GSM8K writes after its last `####`, commas of thousands removed. ValueError if there is no such line."""
    _, mark, rest = text.rpartition("####")
    lines = rest.strip().splitlines()
    if not mark or not lines:
        raise ValueError("the text has no line that begins with ####")
    return lines[0].strip().replace(",", "")


# --- one way of writing -----------------------------------------------------------------------------------

_CHARACTERS = str.maketrans(
    {
        "−": "-",
        "–": "-",
        "×": "*",
        "·": "*",
        "⋅": "*",
        "÷": "/",
        "⁄": "/",
        "²": "^2",
        "³": "^3",
        "π": r"\pi ",
        "∞": r"\infty ",
        "√": r"\sqrt ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "≠": r"\ne ",
        "∪": r"\cup ",
        "∈": r"\in ",
        "±": r"\pm ",
        "½": r"\frac{1}{2}",
        "¼": r"\frac{1}{4}",
        "¾": r"\frac{3}{4}",
        "°": "",
        "\u00a0": " ",
        "\u2009": " ",
        "~": " ",
    }
)
_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
_THOUSANDS_IN_LATEX = re.compile(r"(?<=[0-9])(?:\{,\}|,\\!)\s*(?=[0-9]{3})")
_SIZES = re.compile(r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|limits)(?![a-zA-Z])")
_SPACES = re.compile(r"(?<!\\)\\(?:[!,;:> ]|q?quad(?![a-zA-Z]))")
_FRACTIONS = re.compile(r"\\[dtc]frac(?![a-zA-Z])")
_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|normal)?|mbox|hbox|math(?:rm|bf|it|sf)|operatorname)\s*\{([^{}]*)\}"
)
_POWER_OF_UNIT = re.compile(r"\s*\^\s*(?:\{[0-9]\}|[0-9])")
_DEGREES = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))|\\degree(?![a-zA-Z])")
_UNIT_WORDS = (
    "degrees? dollars? cents? percent units? points? "
    "(?:milli|centi|kilo)?met(?:er|re)s? inch(?:es)? f(?:oo|ee)t yards? miles? "
    "cm mm km ft in m (?:kilo|milli)?grams? kg g mph lit(?:er|re)s? ml "
    "seconds? minutes? hours? days? weeks? months? years? people square cubic sq per"
).split()
_UNITS = re.compile(
    rf"(?<=[0-9}})\].])\s*(?<![a-zA-Z])(?:(?:{'|'.join(_UNIT_WORDS)})(?![a-zA-Z])\.?(?:\^[0-9])?\s*)+$"
)
_CONJUNCTION = re.compile(r"^\s*(?:or|and)\s*$")
_THOUSANDS = re.compile(r"(?<![0-9.])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])")
_BRACKETED = re.compile(r"[(\[{]")
_IN_SET = re.compile(r"^[a-zA-Z]\s*\\in(?![a-zA-Z])\s*")
_MIXED = re.compile(r"^(-?)\s*([0-9]+)\s+([0-9]+)\s*/\s*([0-9]+)$")
_SPACE_THAT_COUNTS = re.compile(r"(\\[a-zA-Z]+) +(?=[a-zA-Z])| +")


def normalize_answer(answer: str | None) -> str | None:
    """The same text for the same answer in another dress: no spaces, units, dollars, sizes of brackets."""
    if answer is None:
        return None
    text = _unwrap(answer.strip().translate(_CHARACTERS).strip())
    text = _THOUSANDS_IN_LATEX.sub("", text)
    text = _SPACES.sub(" ", _SIZES.sub("", text))
    text = _DEGREES.sub("", _FRACTIONS.sub(r"\\frac", text))
    text = _without_text_commands(text)
    text = text.replace(r"\%", "").replace("%", "").replace(r"\$", "").replace("$", "")
    text = _UNITS.sub("", text.strip())
    text = text.strip().rstrip(".").strip()
    text = _IN_SET.sub("", text)
    if not _BRACKETED.search(text):  # (100,200) is a point, and 100,200 a number
        text = _THOUSANDS.sub(lambda number: number[0].replace(",", ""), text)
    text = _MIXED.sub(r"\1\2\\frac{\3}{\4}", text)
    text = " ".join(text.split())
    text = _SPACE_THAT_COUNTS.sub(lambda space: f"{space[1]} " if space[1] else "", text)
    return re.sub(r"(?<![0-9])\.(?=[0-9])", "0.", text)


def _unwrap(text: str) -> str:
    for opening, closing in _WRAPPERS:
        long_enough = len(text) > len(opening) + len(closing)
        if long_enough and text.startswith(opening) and text.endswith(closing):
            inside = text[len(opening) : -len(closing)].strip()
            if opening not in inside:
                return inside
    if _BOX.match(text) and text.endswith("}"):
        return extract_boxed(text) if text.count("{") == text.count("}") else text
    return text


def _without_text_commands(text: str) -> str:
    r"""`\text{even}` is even, `5 \text{ cm}^2` is 5, and `\text{ or }` a comma."""
    parts: list[str] = []
    end = 0
    for match in _TEXT.finditer(text):
        parts.append(text[end : match.start()])
        end = match.end()
        if _CONJUNCTION.match(match[1]):
            parts.append(",")
        elif "".join(parts).strip():  # after something it is a unit
            power = _POWER_OF_UNIT.match(text, end)
            end = power.end() if power else end
        else:
            parts.append(match[1])
    parts.append(text[end:])
    return "".join(parts)
