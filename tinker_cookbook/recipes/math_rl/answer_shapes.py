r"""Answers that are more than one formula: tuples, intervals, sets, lists, unions, matrices, equations, inequalities.

They are compared part by part. What comes of a comparison is True, False, or None: to be worked out by a solver.
"""

import re
from collections.abc import Callable, Iterable, Sequence

from tinker_cookbook.recipes.math_rl.expressions import Tree, is_unreduced_fraction, parse, rational_value

Verdict = bool | None
TreesEqual = Callable[[Tree, Tree], Verdict]

MOST_PARTS = 30
_BRACKETS = {"(": ")", "[": "]"}
_SET = re.compile(r"^\\\{(.*)\\\}$", re.DOTALL)
_MATRIX = re.compile(r"^\\begin\{([bpvBV]?matrix)\}(.*)\\end\{\1\}$", re.DOTALL)
_UNION = re.compile(r"\\cup(?![a-zA-Z])")
_SIGNS = re.compile(r"\\(pm|mp)(?![a-zA-Z])")
_RELATION = re.compile(r"<=|>=|!=|==|\\(?:leq?|geq?|neq?|lt|gt)(?![a-zA-Z])|[=<>]")
_RELATIONS = {
    "==": "=",
    r"\le": "<=",
    r"\leq": "<=",
    r"\ge": ">=",
    r"\geq": ">=",
    r"\lt": "<",
    r"\gt": ">",
    r"\ne": "!=",
    r"\neq": "!=",
}
_TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}
_NAMES_ONE = re.compile(r"^(?:[a-zA-Z]+|\\[a-zA-Z]+|[a-zA-Z]\([a-zA-Z]\)|[a-zA-Z]_\{?[0-9a-zA-Z]\}?)$")


def split_tuple(text: str) -> list[str]:
    """The elements of a tuple, an interval or a list; of anything else, itself."""
    inside = text[1:-1] if _enclosed(text) else text
    return _split(inside)


def _enclosed(text: str) -> bool:
    """Whether the first character opens what the last one closes: not in (1,2)(3,4)."""
    if len(text) < 3 or text[0] not in _BRACKETS or text[-1] not in ")]":
        return False
    depth = 0
    for at, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0:
            return at == len(text) - 1
    return False


def _split(text: str, separator: str = ",") -> list[str]:
    """At separators that are in no bracket."""
    parts, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == separator and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()]


# --- comparing --------------------------------------------------------------------------------------------


def same_answer(given: str, truth: str, trees_equal: TreesEqual) -> Verdict:
    """Of two normalised answers."""
    if given == truth:
        return True
    if not given:
        return False
    for compare in (_same_matrix, _same_union, _same_set, _same_sequence, _same_relation):
        verdict = compare(given, truth, trees_equal)
        if verdict is not NotImplemented:
            return verdict
    return _same_formula(given, truth, trees_equal)


def _same_matrix(given: str, truth: str, trees_equal: TreesEqual) -> Verdict:
    rows_given, rows_truth = _matrix(given), _matrix(truth)
    if rows_given is None and rows_truth is None:
        return NotImplemented
    if rows_given is None or rows_truth is None or len(rows_given) != len(rows_truth):
        return False
    return all_of(
        _same_ordered(ours, theirs, trees_equal) for ours, theirs in zip(rows_given, rows_truth, strict=True)
    )


def _matrix(text: str) -> list[list[str]] | None:
    match = _MATRIX.match(text)
    if match is None:
        return None
    rows = [row.strip() for row in match[2].split("\\\\")]
    return [_split(row, "&") for row in rows if row]


def _same_union(given: str, truth: str, trees_equal: TreesEqual) -> Verdict:
    parts_given, parts_truth = _UNION.split(given), _UNION.split(truth)
    if len(parts_given) == len(parts_truth) == 1:
        return NotImplemented
    return _same_unordered([p.strip() for p in parts_given], [p.strip() for p in parts_truth], trees_equal)


def _same_set(given: str, truth: str, trees_equal: TreesEqual) -> Verdict:
    inside_given, inside_truth = _SET.match(given), _SET.match(truth)
    if inside_given is None and inside_truth is None:
        return NotImplemented
    if inside_given is None or inside_truth is None:
        return False
    return _same_unordered(_listed(inside_given[1]), _listed(inside_truth[1]), trees_equal)


def _same_sequence(given: str, truth: str, trees_equal: TreesEqual) -> Verdict:
    """In brackets the order counts, and the brackets do; without them it is a list of answers in any order."""
    tuple_given, tuple_truth = (_enclosed(text) and len(split_tuple(text)) > 1 for text in (given, truth))
    if tuple_given or tuple_truth:
        if not (tuple_given and tuple_truth) or (given[0], given[-1]) != (truth[0], truth[-1]):
            return False
        return _same_ordered(split_tuple(given), split_tuple(truth), trees_equal)
    listed_given, listed_truth = _listed(given), _listed(truth)
    if len(listed_given) == len(listed_truth) == 1:
        return NotImplemented
    return _same_unordered(listed_given, listed_truth, trees_equal)


def _listed(text: str) -> list[str]:
    r"""The answers of a list, `1 \pm x` being two of them."""
    return [written for part in _split(text) for written in _both_signs(part)]


def _both_signs(text: str) -> list[str]:
    if not _SIGNS.search(text):
        return [text]
    upper, lower = {"pm": "+", "mp": "-"}, {"pm": "-", "mp": "+"}
    return [_SIGNS.sub(lambda sign: upper[sign[1]], text), _SIGNS.sub(lambda sign: lower[sign[1]], text)]


def _same_relation(given: str, truth: str, trees_equal: TreesEqual) -> Verdict:
    """`y = 2x` is answered by 2x, and x < 3 by 3 > x."""
    (sides_given, signs_given), (sides_truth, signs_truth) = _relation(given), _relation(truth)
    if not signs_given and not signs_truth:
        return NotImplemented
    if not signs_given or not signs_truth:
        sides, signs, other = (
            (sides_truth, signs_truth, given) if signs_truth else (sides_given, signs_given, truth)
        )
        if signs != ["="] or not _NAMES_ONE.match(sides[0]):
            return False
        return same_answer(*((other, sides[1]) if signs_truth else (sides[1], other)), trees_equal)
    turned = ([*reversed(sides_given)], [_TURNED[sign] for sign in reversed(signs_given)])
    return any_of(
        _same_ordered(sides, sides_truth, trees_equal) if signs == signs_truth else False
        for sides, signs in ((sides_given, signs_given), turned)
    ) or _same_equation(sides_given, signs_given, sides_truth, signs_truth, trees_equal)


def _same_equation(
    sides_given: list[str],
    signs_given: list[str],
    sides_truth: list[str],
    signs_truth: list[str],
    trees_equal: TreesEqual,
) -> Verdict:
    """Equations are the same if one is the other, brought to zero, times a number."""
    if signs_given != ["="] or signs_truth != ["="]:
        return False
    trees = [parse(side) for side in (*sides_given, *sides_truth)]
    if any(tree is None for tree in trees):
        return False
    given_left, given_right, truth_left, truth_right = trees
    ours, theirs = (("+", left, ("-", right)) for left, right in
                    ((given_left, given_right), (truth_left, truth_right)))  # fmt: skip
    return trees_equal(("equation", ours), ("equation", theirs))


def _relation(text: str) -> tuple[list[str], list[str]]:
    signs = [_RELATIONS.get(sign[0], sign[0]) for sign in _RELATION.finditer(text)]
    return [side.strip() for side in _RELATION.split(text)], signs


def _same_formula(given: str, truth: str, trees_equal: TreesEqual) -> Verdict:
    tree_given, tree_truth = parse(given), parse(truth)
    if tree_given is None or tree_truth is None:
        return tree_given is tree_truth and given.casefold() == truth.casefold()
    if tree_given == tree_truth:
        return True
    value_given, value_truth = rational_value(tree_given), rational_value(tree_truth)
    if value_truth is not None and value_truth.denominator == 1 and tree_truth[0] == "number":
        return tree_given[0] == "number" and value_given == value_truth
    if is_unreduced_fraction(tree_given):
        return False
    if value_given is not None and value_truth is not None:
        return value_given == value_truth
    return trees_equal(tree_given, tree_truth)


# --- three-valued logic -----------------------------------------------------------------------------------


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    found = list(verdicts)
    return False if False in found else None if None in found else True


def any_of(verdicts: Iterable[Verdict]) -> Verdict:
    found = list(verdicts)
    return True if True in found else None if None in found else False


def _same_ordered(given: Sequence[str], truth: Sequence[str], trees_equal: TreesEqual) -> Verdict:
    if len(given) != len(truth) or len(given) > MOST_PARTS:
        return False
    return all_of(same_answer(ours, theirs, trees_equal) for ours, theirs in zip(given, truth, strict=True))


def _same_unordered(given: Sequence[str], truth: Sequence[str], trees_equal: TreesEqual) -> Verdict:
    """Each is paired with the first that is the same: sameness being transitive, any pairing will do."""
    if len(given) != len(truth) or len(given) > MOST_PARTS:
        return False
    left = list(truth)
    unsure = False
    for ours in given:
        verdicts = [same_answer(ours, theirs, trees_equal) for theirs in left]
        if True in verdicts:
            del left[verdicts.index(True)]
        elif None in verdicts:
            unsure = True
        else:
            return False
    return None if unsure else True
