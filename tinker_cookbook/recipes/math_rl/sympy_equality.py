"""Whether two formulas are equal, with sympy. Built from trees that were read here, never from text: nothing is run.

They are worked out to many digits, at points chosen once for all where there are variables. Two formulas that agree at
each are equal but for a chance in 10^30; `simplify` would take seconds and often not know.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from typing import TypeAlias

import sympy

from tinker_cookbook.recipes.math_rl.answer_shapes import same_answer
from tinker_cookbook.recipes.math_rl.expressions import Tree, parse

Point: TypeAlias = dict[sympy.Basic, sympy.Basic | float]

DIGITS = 50
POINTS = 4  # at which two formulas must agree
TRIES = 12  # some points are outside of the domain
MOST_SYMBOLS = 12
LARGEST_FACTORIAL = 200
LARGEST_POWER_BITS = 20_000
_TOLERANCE = sympy.Float(10, DIGITS) ** -30
_NEAR_ZERO = sympy.Float(10, DIGITS) ** -40

_FUNCTIONS: dict[str, Callable[..., sympy.Expr]] = {
    "sin": sympy.sin,
    "cos": sympy.cos,
    "tan": sympy.tan,
    "cot": sympy.cot,
    "sec": sympy.sec,
    "csc": sympy.csc,
    "sinh": sympy.sinh,
    "cosh": sympy.cosh,
    "tanh": sympy.tanh,
    "arcsin": sympy.asin,
    "arccos": sympy.acos,
    "arctan": sympy.atan,
    "ln": sympy.log,
    "log": sympy.log,
    "exp": sympy.exp,
    "abs": sympy.Abs,
    "sqrt": sympy.sqrt,
    "root": lambda of, degree: sympy.Pow(of, 1 / degree),
    "binom": sympy.binomial,
}
_SYMBOLS = {"pi": sympy.pi, "infty": sympy.oo, "e": sympy.E, "i": sympy.I}


class _RefusedError(Exception):
    """Too large to be worked out."""


def grade(given: str, truth: str) -> bool:
    """Of two normalised answers. What cannot be worked out is not the same."""
    return bool(same_answer(given, truth, trees_equal))


def trees_equal(given: Tree, truth: Tree) -> bool:
    try:
        if given[0] == truth[0] == "equation":
            return _proportional(to_sympy(given[1]), to_sympy(truth[1]))
        return _equal(to_sympy(given), to_sympy(truth))
    except (_RefusedError, TypeError, ValueError, ArithmeticError, RecursionError):
        return False  # sympy raises these for what has no value


def to_sympy(tree: Tree) -> sympy.Expr:
    kind, *rest = tree
    if kind == "number":
        return sympy.Rational(rest[0].numerator, rest[0].denominator)
    if kind == "symbol":
        return _SYMBOLS.get(rest[0]) or sympy.Symbol(rest[0])
    parts = [to_sympy(part) for part in rest]
    if kind == "+":
        return sympy.Add(*parts)
    if kind == "-":
        return -parts[0]
    if kind == "*":
        return parts[0] * parts[1]
    if kind == "/":
        return parts[0] / parts[1]
    if kind == "^":
        return _power(*parts)
    if kind == "!":
        return _factorial(parts[0])
    if kind == "_":  # 52_8 and x_1 are names of something: equal if they are written alike
        return sympy.Symbol(f"{parts[0]}_{parts[1]}")
    if kind in ("binom", "root") and any(
        abs(part) > LARGEST_FACTORIAL for part in parts[1:] if part.is_number
    ):
        raise _RefusedError
    return _FUNCTIONS[kind](*parts)


def _power(base: sympy.Expr, exponent: sympy.Expr) -> sympy.Expr:
    """sympy works a power of numbers out at once, however large."""
    if base.is_number and exponent.is_number:
        size = abs(sympy.N(exponent, 10)) * abs(sympy.log(abs(sympy.N(base, 10)) + 2, 2))
        if not size < LARGEST_POWER_BITS:
            raise _RefusedError
    return sympy.Pow(base, exponent)


def _factorial(of: sympy.Expr) -> sympy.Expr:
    if not of.is_Integer or not 0 <= of <= LARGEST_FACTORIAL:
        raise _RefusedError
    return sympy.factorial(of)


# --- comparing --------------------------------------------------------------------------------------------


def _equal(given: sympy.Expr, truth: sympy.Expr) -> bool:
    if given == truth:
        return True
    symbols = given.free_symbols | truth.free_symbols
    agreed = 0
    for point in _points(symbols):
        ours, theirs = (_value(expression, point) for expression in (given, truth))
        if ours is None and theirs is None:
            continue
        if ours is None or theirs is None or not _close(ours, theirs):
            return False
        agreed += 1
        if agreed == POINTS or not symbols:
            return True
    return False


def _proportional(given: sympy.Expr, truth: sympy.Expr) -> bool:
    """Whether one is a number, not zero, times the other."""
    symbols = given.free_symbols | truth.free_symbols
    if given.free_symbols != truth.free_symbols:
        return False
    ratios = []
    for point in _points(symbols):
        ours, theirs = (_value(expression, point) for expression in (given, truth))
        if ours is not None and theirs is not None and ours != 0 and theirs != 0:
            ratios.append(ours / theirs)
    return len(ratios) >= POINTS and all(_close(ratio, ratios[0]) for ratio in ratios[1:])


def _points(symbols: set[sympy.Basic]) -> Iterator[Point]:
    """The same ones every time, on both sides of zero."""
    if len(symbols) > MOST_SYMBOLS:
        return
    rng = random.Random(0)
    for _ in range(TRIES if symbols else 1):
        yield {symbol: sympy.Rational(rng.randint(-4000, 4000), 1009) for symbol in sorted(symbols, key=str)}


def _value(expression: sympy.Expr, point: Point) -> sympy.Expr | None:
    value = expression.evalf(DIGITS, subs=point)
    if value in (sympy.oo, -sympy.oo):
        return value
    return value if value.is_number and value.is_finite else None


def _close(first: sympy.Expr, second: sympy.Expr) -> bool:
    if first == second:
        return True
    if not (first.is_finite and second.is_finite):
        return False
    apart, size = abs(first - second), max(abs(first), abs(second))
    return bool(apart <= size * _TOLERANCE or apart <= _NEAR_ZERO)


def warm_up() -> None:
    """sympy imports and fills its caches when it is first used, which must not count as somebody's time."""
    for given, truth in itertools.product((r"\frac{\sqrt{2}}{2}x", r"\sin(x)^2", "2^{1/2}"), repeat=2):
        first, second = parse(given), parse(truth)
        assert first is not None
        assert second is not None
        trees_equal(first, second)
