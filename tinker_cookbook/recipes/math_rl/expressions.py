r"""A reader of formulas: LaTeX as models write it, or plain `2*x^3`, to a tree. Runs nothing and grows nothing.

The tree is tuples: ("number", Fraction), ("symbol", name), (operator, *trees). What it cannot read, or what is too
large to be an honest answer, is None.
"""

import re
from fractions import Fraction
from typing import Any, TypeAlias

Tree: TypeAlias = tuple[Any, ...]

LONGEST = 1000  # characters
MOST_TOKENS = 400
DEEPEST = 40
MOST_DIGITS = 60
LARGEST_EXPONENT = 10_000

FUNCTIONS = frozenset("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log exp sqrt".split())
CONSTANTS = frozenset(("pi", "infty"))
GREEK = frozenset(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta kappa lambda mu nu xi rho sigma tau phi varphi "
    "chi psi omega Gamma Delta Theta Lambda Sigma Phi Psi Omega".split()
)
_TOKEN = re.compile(
    r"(?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)|(?P<command>\\[a-zA-Z]+)|(?P<word>[a-zA-Z]+)"
    r"|(?P<sign>\*\*|[-+*/^_!|(){}\[\]])|(?P<space>\s+)"
)
_TIMES = {
    r"\cdot": "*",
    r"\times": "*",
    r"\div": "/",
    r"\ast": "*",
    "**": "^",
    r"\lvert": "|",
    r"\rvert": "|",
}
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_ENDS = frozenset(")]}+-*/^_!|")


class _UnreadableError(Exception):
    pass


def parse(text: str) -> Tree | None:
    if len(text) > LONGEST or (len(text) > 2 and text.isalpha()):  # yes is a word, xy a product
        return None
    try:
        reader = _Reader(_tokens(text))
        tree = reader.sum(0)
        reader.expect_end()
    except _UnreadableError:
        return None
    return tree


def _tokens(text: str) -> list[str]:
    found: list[str] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or len(found) > MOST_TOKENS:
            raise _UnreadableError
        at = match.end()
        if match["word"]:
            found.extend(_word(match["word"]))
        elif not match["space"]:
            found.append(_TIMES.get(match[0], match[0]))
    return found


def _word(word: str) -> list[str]:
    """A function, a constant, or letters one by one; a word of the language is no formula."""
    if word in FUNCTIONS or word in CONSTANTS:
        return ["\\" + word]
    if len(word) > 3:
        raise _UnreadableError
    return list(word)


class _Reader:
    """One method for each level of binding; `depth` bounds how far brackets nest."""

    def __init__(self, tokens: list[str]):
        self._tokens = tokens
        self._at = 0

    @property
    def next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def take(self, expected: str | None = None) -> str:
        token = self.next
        if not token or (expected is not None and token != expected):
            raise _UnreadableError
        self._at += 1
        return token

    def expect_end(self) -> None:
        if self.next:
            raise _UnreadableError

    def sum(self, depth: int) -> Tree:
        terms = [self.signed_product(depth)]
        while self.next in ("+", "-"):
            terms.append(self.signed_product(depth))
        return terms[0] if len(terms) == 1 else ("+", *terms)

    def signed_product(self, depth: int) -> Tree:
        negative = False
        while self.next in ("+", "-"):
            negative ^= self.take() == "-"
        tree = self.product(depth)
        return _negated(tree) if negative else tree

    def product(self, depth: int) -> Tree:
        tree = self.mixed_number(depth)
        while True:
            if self.next == "*":
                self.take()
                tree = ("*", tree, self.factor(depth))
            elif self.next == "/":
                self.take()
                tree = ("/", tree, self.factor(depth))
            elif self.next and self.next not in _ENDS:
                tree = ("*", tree, self.power(depth))
            else:
                return tree

    def mixed_number(self, depth: int) -> Tree:
        r"""`1\frac{4}{5}` is one and four fifths."""
        whole = self.factor(depth)
        if not (_is_integer(whole) and self.next == r"\frac"):
            return whole
        part = self.power(depth)
        if part[0] == "/" and _is_integer(part[1]) and _is_integer(part[2]) and part[2][1] > part[1][1]:
            return ("number", whole[1] + part[1][1] / part[2][1])
        return ("*", whole, part)

    def factor(self, depth: int) -> Tree:
        """As after `*`, where a sign may stand."""
        negative = False
        while self.next in ("+", "-"):
            negative ^= self.take() == "-"
        tree = self.power(depth)
        return _negated(tree) if negative else tree

    def power(self, depth: int) -> Tree:
        tree = self.subscripted(depth)
        if self.next != "^":
            return tree
        self.take()
        exponent = self.argument(depth + 1)
        if self.next == "^":  # towers are no answers
            raise _UnreadableError
        if exponent[0] == "number" and abs(exponent[1]) > LARGEST_EXPONENT:
            raise _UnreadableError
        return ("^", tree, exponent)

    def subscripted(self, depth: int) -> Tree:
        tree = self.atom(depth)
        while self.next in ("_", "!"):
            tree = ("_", tree, self.argument(depth + 1)) if self.take() == "_" else ("!", tree)
        return tree

    def argument(self, depth: int) -> Tree:
        r"""What LaTeX takes without braces is one digit or letter (`\frac12`); plain `2^10` takes the number."""
        if self.next in ("-", "+"):
            return self.factor(depth)
        return self.atom(depth)

    def digit_or_group(self, depth: int) -> Tree:
        token = self.next
        if token.isdigit() and len(token) > 1:
            self._tokens[self._at : self._at + 1] = [token[0], token[1:]]
        return self.atom(depth)

    def atom(self, depth: int) -> Tree:
        if depth > DEEPEST:  # whatever nests comes through here
            raise _UnreadableError
        token = self.take()
        if token[0].isdigit() or token[0] == ".":
            return _number(token)
        if token in _CLOSING:
            tree = self.sum(depth + 1)
            self.take(_CLOSING[token])
            return tree
        if token == "|":
            tree = self.sum(depth + 1)
            self.take("|")
            return ("abs", tree)
        if token[0] == "\\":
            return self.command(token[1:], depth)
        if token.isalpha():
            return ("symbol", token)
        raise _UnreadableError

    def command(self, name: str, depth: int) -> Tree:
        if name in ("frac", "binom"):
            top, bottom = self.digit_or_group(depth + 1), self.digit_or_group(depth + 1)
            return ("/" if name == "frac" else "binom", top, bottom)
        if name == "sqrt":
            return self.root(depth)
        if name in FUNCTIONS:
            return self.function(name, depth)
        if name in CONSTANTS or name in GREEK:
            return ("symbol", name)
        raise _UnreadableError

    def root(self, depth: int) -> Tree:
        if self.next != "[":
            return ("sqrt", self.digit_or_group(depth + 1))
        self.take("[")
        degree = self.sum(depth + 1)
        self.take("]")
        return ("root", self.digit_or_group(depth + 1), degree)

    def function(self, name: str, depth: int) -> Tree:
        r"""`\sin^2 x`, `\log_2 8`, `\cos(x+1)`, `\cos 2x`."""
        base = exponent = None
        if self.next == "_":
            self.take()
            base = self.digit_or_group(depth + 1)
        if self.next == "^":
            self.take()
            exponent = self.digit_or_group(depth + 1)
        if self.next in ("(", "{", "["):
            inside = self.atom(depth + 1)
        else:
            inside = self.power(depth + 1)
            while self.next and self.next not in _ENDS and self.next[1:] not in FUNCTIONS:
                inside = ("*", inside, self.power(depth + 1))
        tree = (name, inside) if base is None else (name, inside, base)
        return tree if exponent is None else ("^", tree, exponent)


def _number(token: str) -> Tree:
    if len(token) > MOST_DIGITS:
        raise _UnreadableError
    return ("number", Fraction(token))


def _negated(tree: Tree) -> Tree:
    return ("number", -tree[1]) if tree[0] == "number" else ("-", tree)


def _is_integer(tree: Tree) -> bool:
    return tree[0] == "number" and tree[1].denominator == 1


# --- numbers ----------------------------------------------------------------------------------------------


def rational_value(tree: Tree) -> Fraction | None:
    """The value of a number or of a fraction of numbers; None for whatever has to be worked out."""
    if tree[0] == "number":
        return tree[1]
    if tree[0] == "-":
        inner = rational_value(tree[1])
        return None if inner is None else -inner
    if tree[0] == "/" and tree[1][0] == tree[2][0] == "number" and tree[2][1] != 0:
        return tree[1][1] / tree[2][1]
    return None


def is_unreduced_fraction(tree: Tree) -> bool:
    """2/4 and 6/3, but not 1/2 nor 0.5/3."""
    if tree[0] == "-":
        return is_unreduced_fraction(tree[1])
    if tree[0] != "/" or not (_is_integer(tree[1]) and _is_integer(tree[2])) or tree[2][1] == 0:
        return False
    return (tree[1][1] / tree[2][1]).denominator != abs(tree[2][1]) or abs(tree[2][1]) == 1
