"""Which answers are right, and that no answer does harm."""

import asyncio
import importlib.util
import itertools
import json
import os
from pathlib import Path

import pytest

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes import bounded_calls
from tinker_cookbook.recipes.math_rl import math_grading
from tinker_cookbook.recipes.math_rl.expressions import parse
from tinker_cookbook.recipes.math_rl.math_grading import (
    extract_boxed,
    extract_gsm8k_final_answer,
    grade_answer,
    normalize_answer,
    safe_grade,
    safe_grade_async,
    split_tuple,
)

DATA = os.environ.get("TINKER_COOKBOOK_TEST_DATA")
"""A folder with gsm8k/{train,test}.jsonl and math500/test.jsonl as they were published."""
needs_data = pytest.mark.skipif(not DATA, reason="TINKER_COOKBOOK_TEST_DATA names no folder of data")
needs_math_verify = pytest.mark.skipif(
    importlib.util.find_spec("math_verify") is None, reason="math-verify is not installed"
)


# --- taking answers out -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{4}", "4"),
        (r"\boxed{1} then \boxed{2}.", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\boxed{3}}", r"\boxed{3}"),
        (r"\fbox{a}", "a"),
        (r"\boxed 7 is it", "7"),
        (r"$\boxed 7$", "7"),
        (r"a stray } and \boxed{5}", "5"),
        (r"\boxed{5} and a stray }", "5"),
        (r"a { never closed \boxed{6}", "6"),
        (r"\boxed{1} but \boxed{2 is cut", "1"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{ 8 }", "8"),
    ],
)
def test_the_last_closed_box(text, answer):
    assert extract_boxed(text) == answer


@pytest.mark.parametrize("text", ["", "7", r"\boxed", r"\boxed{7", "}{", r"\boxe{7}"])
def test_no_box(text):
    with pytest.raises(ValueError, match="boxed"):
        extract_boxed(text)


def test_a_great_many_boxes_take_no_longer_than_their_length():
    text = r"\boxed{" * 20_000
    with pytest.raises(ValueError, match="boxed"):
        extract_boxed(text)
    assert extract_boxed(text + "1}") == "1"


def test_gsm8k():
    assert extract_gsm8k_final_answer("a\n#### 5\nb\n#### 1,234") == "1234"
    for text in ("no", "####", "#### \n"):
        with pytest.raises(ValueError, match="####"):
            extract_gsm8k_final_answer(text)


# --- right and wrong --------------------------------------------------------------------------------------

SAME = [
    ("1/2", "0.5"),
    ("1,000", "1000"),
    ("5 cm", "5"),
    ("3.0", "3"),
    (".5", "0.5"),
    ("(1, 2)", "(1,2)"),
    (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt 2}"),
    ("x^2+2x+1", "(x+1)^2"),
    (r"1+\sqrt{19}, 1-\sqrt{19}", r"1 \pm \sqrt{19}"),
    ("2x+3", "y = 2x + 3"),
    ("10x-14y+22z+8=0", "5x - 7y + 11z + 4 = 0"),
    ("-2,1", "1,-2"),
    ("[-2,7]", r"x \in [-2,7]"),
    ("evelyn", r"\text{Evelyn}"),
    ("C", r"\text{(C)}"),
    ("52_{8}", "52_8"),
    ("11111111100", r"11,\! 111,\! 111,\! 100"),
    (r"\frac{9}{5}", r"1\frac{4}{5}"),
    ("1 4/5", r"1\frac{4}{5}"),
    (r"$\frac12$", "0.5"),
    ("90", r"90^\circ"),
    (r"\frac{270}{7}", r"\frac{270}7\text{ degrees}"),
    ("864", r"864 \mbox{ inches}^2"),
    ("3>x", "x<3"),
    (r"\begin{pmatrix}1/2\\3\end{pmatrix}", r"\begin{bmatrix} 0.5 \\ 3 \end{bmatrix}"),
    (r"\cot x", r"1/\tan(x)"),
    (r"\{1-\sqrt5,1+\sqrt{5},-2\}", r"\{1\pm\sqrt{5},-2\}"),
    ("6-5i", "-5i+6"),
    (r"\log_2 8 + x", "3+x"),
    ("2^{1/2}", r"\sqrt2"),
    ("x=5", "5"),
    (r"50\%", "50"),
    ("18.9", r"\$18.90"),
    (r"-\frac{1}{2}", r"\frac{-1}{2}"),
    (r"(3,\infty) \cup (-\infty,2)", r"(-\infty, 2) \cup (3, \infty)"),
    (r"x=3 \text{ or } x=5", "5, 3"),
    ("4π", r"4\pi"),
    ("−7", "-7"),
]
DIFFERENT = [
    ("2/4", "1/2"),
    ("6/2", "3"),
    (r"\sqrt{9}", "3"),
    ("(1,2)", "(2,1)"),
    ("(1,2)", "[1,2]"),
    ("(1,2)", "1,2"),
    ("(1,2)", "(1,2,3)"),
    (r"(3,\infty)", "(3,4)"),
    ("x^2+2x", "(x+1)^2"),
    (r"\sqrt{x^2}", "x"),
    ("10x-14y+22z+9=0", "5x - 7y + 11z + 4 = 0"),
    ("x=5", "y=5"),
    ("52", "52_8"),
    ("yes", "no"),
    ("x<3", r"x \le 3"),
    ("0", ""),
    ("", "0"),
    ("100,200", "(100,200)"),
    ("0.333", "1/3"),
    ("1/0", "0"),
    ("x", "y"),
]


@pytest.mark.parametrize(("given", "truth"), SAME)
def test_the_same_answer_in_another_dress(given, truth):
    assert grade_answer(given, truth)
    assert safe_grade(given, truth)


@pytest.mark.parametrize(("given", "truth"), DIFFERENT)
def test_another_answer(given, truth):
    assert not grade_answer(given, truth)
    assert not safe_grade(given, truth)


def test_numbers_and_words_take_no_process(monkeypatch):
    def refuse():
        raise AssertionError("a process was asked for")

    monkeypatch.setattr(math_grading, "shared_calls", refuse)
    assert safe_grade("1,234", "1234")
    assert safe_grade(r"\frac{1}{2}", "0.5")
    assert not safe_grade("x+1", "2")
    assert not safe_grade("not at all", "x+1")
    assert not safe_grade(None, "1")


def test_splitting_and_normalising():
    assert split_tuple("(1,(2,3),4)") == ["1", "(2,3)", "4"]
    assert split_tuple("[a, b)") == ["a", "b"]
    assert split_tuple("7") == ["7"]
    assert split_tuple("(1,2)(3,4)") == ["(1,2)(3,4)"]
    assert normalize_answer(None) is None
    assert normalize_answer(r"\left( 3, \dfrac{\pi}{2} \right)") == r"(3,\frac{\pi}{2})"


def test_an_unknown_grader():
    with pytest.raises(ConfigurationError, match="sympy, math_verify"):
        safe_grade("1", "1", grader="calculator")  # pyright: ignore[reportArgumentType]


# --- hostile answers --------------------------------------------------------------------------------------

HOSTILE = {
    "tower": "9**9**9**9",
    "tower in braces": "9^{9^{9^9}}",
    "power of powers": "((9^{99})^{99})^{99}",
    "large exponent": "10^{10^{10}}",
    "brackets": "(" * 50_000,
    "nested": "(" * 300 + "1" + ")" * 300,
    "nested roots": r"\sqrt" * 300 + "2",
    "braces": "{" * 900,
    "long": "x" * 100_000,
    "long sum": "1" + "+x" * 450,
    "digits": "1" * 900,
    "code": "__import__('os').system('touch {marker}')",
    "call": "open('{marker}','w')",
    "factorials": "((((((10!)!)!)!)!)!)",
    "binomial": r"\binom{10^9}{10^8}+x",
    "by zero": r"\frac{1}{0}",
    "zeroth root": r"\sqrt[0]{2}",
    "sine": r"\sin(10^{9999})+x",
    "expansion": "(x+y+z+1)^{300}-(x+y+z+2)^{300}",
    "signs": "-" * 900 + "x",
    "list": ",".join("1" * 400),
    "relations": "<" * 900,
    "pluses and minuses": r"\pm" * 200,
    "bars": "|" * 99,
    "arabic digits": "١٢٣",
    "mathematical digits": "𝟙𝟚",
    "half a character": "\ud800",
    "zero byte": "1\x00",
    "box": r"\boxed{" * 100,
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("truth", [r"x+\sqrt{2}", "0.5", "(x,2)"])
def test_a_hostile_answer_is_wrong_and_does_nothing(name, truth, tmp_path):
    marker = tmp_path / "ran"
    assert safe_grade(HOSTILE[name].replace("{marker}", str(marker)), truth) is False
    assert not marker.exists()


def test_what_cannot_be_read_is_not_read():
    for name in ("tower", "brackets", "nested", "nested roots", "long", "code", "digits", "arabic digits"):
        assert parse(HOSTILE[name]) is None, name


def test_an_answer_that_takes_too_long_is_wrong_and_the_next_is_graded(caplog):
    slow = r"\exp(\exp(\exp(\exp(\exp(100)))))"
    assert safe_grade(slow, r"x+\sqrt{2}", timeout=0.2) is False
    assert "took longer than 0.2 s" in caplog.text
    assert safe_grade("(x+1)^2", "x^2+2x+1")


def test_many_gradings_at_once():
    async def main() -> list[bool]:
        return await asyncio.gather(
            *(safe_grade_async(f"(x+{i})^2", f"x^2+{2 * i}x+{i * i}") for i in range(30)),
            *(safe_grade_async(f"(x+{i})^2", f"x^2+{2 * i}x+{i * i + 1}") for i in range(30)),
        )

    assert asyncio.run(main()) == [True] * 30 + [False] * 30


# --- math-verify ------------------------------------------------------------------------------------------


def test_without_math_verify_it_is_said_what_to_install(monkeypatch):
    class Calls:
        def call(self, target, *args, timeout):
            raise bounded_calls.CallUnavailableError("no module", missing="math_verify")

    monkeypatch.setattr(math_grading, "shared_calls", Calls)
    with pytest.raises(ConfigurationError, match="pip install math-verify"):
        safe_grade("x", "y", grader="math_verify")


@needs_math_verify
def test_math_verify_agrees_on_the_clear_ones():
    for given, truth in [
        ("1/2", "0.5"),
        ("x^2+2x+1", "(x+1)^2"),
        (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt 2}"),
    ]:
        assert safe_grade(given, truth, grader="math_verify", timeout=5), given
    for given, truth in [("x", "y"), ("3", "4"), ("(1,2)", "(2,1)")]:
        assert not safe_grade(given, truth, grader="math_verify", timeout=5), given


@needs_math_verify
@pytest.mark.parametrize("name", ["tower in braces", "code", "call", "long"])
def test_math_verify_survives(name, tmp_path):
    marker = tmp_path / "ran"
    given = HOSTILE[name].replace("{marker}", str(marker))
    assert safe_grade(given, r"x+\sqrt{2}", grader="math_verify", timeout=0.5) is False
    assert not marker.exists()


# --- published answers ------------------------------------------------------------------------------------


def rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (Path(DATA or "") / name).read_text(encoding="utf-8").splitlines()]


@needs_data
def test_every_solution_of_math_500_is_right_by_its_own_answer():
    wrong = [
        row["answer"]
        for row in rows("math500/test.jsonl")
        if not safe_grade(extract_boxed(row["solution"]), row["answer"])
    ]
    assert not wrong


@needs_data
def test_no_two_answers_of_math_500_are_taken_for_the_same():
    answers = [row["answer"].removeprefix("x=") for row in rows("math500/test.jsonl")]
    near = [
        (given, truth)
        for given, truth in itertools.pairwise(answers)
        if normalize_answer(given) != normalize_answer(truth) and grade_answer(given, truth)
    ]
    assert not near


@needs_data
@pytest.mark.parametrize("split", ["train", "test"])
def test_every_answer_of_gsm8k_is_a_number_and_right_by_itself(split):
    for row in rows(f"gsm8k/{split}.jsonl"):
        answer = extract_gsm8k_final_answer(row["answer"])
        assert parse(normalize_answer(answer) or "") is not None, answer
        assert safe_grade(f"${answer}.00" if answer.isdigit() else answer, answer), answer
        assert not safe_grade(f"{answer}1", answer), answer
