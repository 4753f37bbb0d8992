"""Single tasks on cases worked out by hand."""

import random

import pytest

from tinker_cookbook.tasks.arithmetic import Sum, last_integer, slip
from tinker_cookbook.tasks.chat import Question
from tinker_cookbook.tasks.formats import Counted, Formatted
from tinker_cookbook.tasks.guess_number import Hidden
from tinker_cookbook.tasks.lists import Compared, Rearranged, Respelled
from tinker_cookbook.tasks.styles import KNOWN_STYLES, NEW_STYLE, STYLES, style_of
from tinker_cookbook.tasks.tictactoe import Position, drawn, is_over, observation, placed, to_move, winner
from tinker_cookbook.tasks.tools import Calculated, LookedUp, calculate, parse_call
from tinker_cookbook.tasks.twenty_questions import PROPERTIES, THINGS, Answering, Asking
from tinker_cookbook.tasks.world import FACTS, PEOPLE, RELATIONS, TOWNS, Fact


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", 42),
        ("The answer is 42.", 42),
        ("27 + 15 = 42", 42),
        ("-7", -7),
        ("27-15", 15),
        ("1,024", 1024),
        ("3.5", None),
        ("none", None),
        ("<think>7+5=12</think>42", 42),
        ("42<think>7</think>", 42),
    ],
)
def test_last_integer(text, number):
    assert last_integer(text) == number


@pytest.mark.parametrize(
    ("a", "op", "b", "reply"),
    [
        (27, "+", 15, "<think>7+5=12, 2+1+1=4</think>42"),
        (12, "+", 3, "<think>2+3=5, 1+0=1</think>15"),
        (42, "-", 15, "<think>12-5=7, 4-1-1=2</think>27"),
        (48, "-", 15, "<think>8-5=3, 4-1=3</think>33"),
        (100, "+", 100, "<think>0+0=0, 10+10=20</think>200"),
    ],
)
def test_thinking_goes_column_by_column(a, op, b, reply):
    problem = Sum(a, op, b, think=True)
    assert problem.right_reply([], random.Random(0)) == reply
    assert problem.check([reply])


def test_a_slip_is_never_the_answer():
    rng = random.Random(0)
    assert all(slip(n, rng) != n and slip(n, rng) >= 0 for n in range(200))


def test_lists():
    assert Rearranged("sort", ("41", "7", "23"), "").answer == "7, 23, 41"
    assert Rearranged("sort", ("owl", "cat"), "").answer == "cat, owl"
    assert Rearranged("reverse", ("a", "b", "c"), "").answer == "c, b, a"
    assert Rearranged("copy", ("a", "b"), "").check(["a, b."])
    assert not Rearranged("copy", ("a", "b"), "").check(["a b"])
    assert Respelled("reverse", "tavo", "").answer == "ovat"
    assert Compared("larger", "9", "10", "").answer == "10"
    assert Compared("smaller", "9", "10", "").answer == "9"
    assert Compared("longer", "cat", "horse", "").answer == "horse"
    assert Compared("alphabet", "owl", "cat", "").answer == "cat"


def test_every_style_is_recognised_and_taken_for_no_other():
    rng = random.Random(0)
    for name, style in STYLES.items():
        for fact in FACTS:
            assert style_of(style.say(fact, rng)) == name
    assert style_of("Tavi lives") is None
    assert set(KNOWN_STYLES) | {NEW_STYLE} == set(STYLES)


def test_a_chat_answer_needs_its_style_and_its_fact():
    fact = Fact("Tavi", RELATIONS["home"], "Ostra")
    plain = Question(fact, "Where does Tavi live?", "plain", "Answer plainly.")
    assert plain.check(["Tavi lives in Ostra."])
    assert not plain.check(["Tavi lives in Pell."])
    assert not plain.check(["Ostra."])
    assert Question(fact, "Where does Tavi live?").check(["Ostra."])
    assert not Question(fact, "Where does Tavi live?").check(["Tavi lives in Ostrava."])


def test_the_world_is_complete():
    assert len(FACTS) == 5 * len(PEOPLE) + 3 * len(TOWNS)
    assert {fact.answer for fact in FACTS if fact.relation.name == "home"} == set(TOWNS)


def test_formats():
    fact = Fact("Tavi", RELATIONS["home"], "Ostra")
    replies = {"upper": "OSTRA", "brackets": "[Ostra]", "json": '{"answer": "Ostra"}'}
    for form, right in replies.items():
        problem = Formatted(fact, "Where does Tavi live?", form, "")
        assert [reply for reply in replies.values() if problem.check([reply])] == [right]
        assert not problem.check([right.replace("O", "P")])
    assert not Formatted(fact, "", "upper", "").check(["[OSTRA]"])
    assert not Formatted(fact, "", "json", "").check(['{"answer": 1}'])
    assert Counted("sea", 4, "").check(["the sea is blue"])
    assert not Counted("sea", 4, "").check(["the blue sea"])
    assert not Counted("sea", 4, "").check(["the sky is blue"])
    assert not Counted("sea", 4, "").check(["the sea is 4"])


def test_tool_calls():
    problem = Calculated(384, "+", 129, "What is 384 + 129?")
    call = problem.right_reply([], random.Random(0))
    assert call == '<tool_call>{"name": "calculator", "arguments": {"expression": "384+129"}}</tool_call>'
    assert problem.respond([call]) == {"role": "tool", "content": "513"}
    assert problem.check([call, "The answer is 513."])
    assert not problem.check(["The answer is 513."])
    assert not problem.check([call, "The answer is 514."])
    assert problem.respond(["513"]) is None
    heard = problem.respond(["<tool_call>{</tool_call>"])
    assert heard
    assert heard["content"].startswith("error")
    assert problem.right_reply(["<tool_call>{</tool_call>"], random.Random(0)) == "I do not know."


def test_the_calculator_refuses_what_it_does_not_know():
    assert calculate("2*3") == "6"
    for bad in ("2**9", "__import__('os')", "", None, "9" * 9 + "*2"):
        assert calculate(bad).startswith("error")


def test_a_call_is_one_object_with_a_name_and_arguments():
    assert parse_call('<tool_call>{"name": "a", "arguments": {}}</tool_call>')
    for bad in ('{"name": "a"}', "[]", '{"name": 1, "arguments": {}}', '{"name": "a", "arguments": []}'):
        assert parse_call(f"<tool_call>{bad}</tool_call>") is None
    assert parse_call('<tool_call>{"name": "a", "arguments": {}}</tool_call>' * 2) is None


def test_the_book_holds_only_what_was_asked():
    problem = LookedUp("Zib", "phone", 3222, "")
    call = problem.right_reply([], random.Random(0))
    assert problem.check([call, "The answer is 3222."])
    heard = problem.respond([call.replace("phone", "age")])
    assert heard == {"role": "tool", "content": "error: not in the book"}


def test_tictactoe_rules():
    board = ("",) * 9
    for cell in (0, 3, 1, 4):
        board = placed(board, cell)
    assert board == ("O", "O", "", "X", "X", "", "", "", "")
    assert to_move(board) == "O"
    assert not is_over(board)
    assert winner(placed(board, 2)) == "O"
    assert drawn(board) == " O | O | 2 \n---+---+---\n X | X | 5 \n---+---+---\n 6 | 7 | 8 "
    assert observation(board, list_moves=True).endswith("Available Moves: '[2]', '[5]', '[6]', '[7]', '[8]'")


def test_a_move_is_legal_when_its_cell_is_free():
    position = Position((0, 3, 1, 4))
    assert position.check(["[2]"])
    assert not position.check(["[0]"])
    assert not position.check(["[9]"])
    assert not position.check(["2"])


def test_a_game_is_told_as_a_conversation():
    prompt = Position((4, 0, 8), with_history=True).prompt  # X is to move: it has moved once, after O's first
    assert [m["role"] for m in prompt] == ["user", "assistant", "user"]
    assert prompt[1]["content"] == "[0]"
    assert "You are X." in prompt[0]["content"]


def test_hints():
    hidden = Hidden(7, 10, "")
    assert hidden.respond(["Guess: 5"]) == {"role": "user", "content": "Higher."}
    assert hidden.respond(["Guess: 5", "Guess: 9"]) == {"role": "user", "content": "Lower."}
    assert hidden.bounds(["Guess: 5", "Guess: 9"]) == (6, 8)
    assert hidden.respond(["Guess: 7"]) is None
    assert hidden.check(["Guess: 5", "Guess: 7"])
    assert hidden.respond(["7"]) is None
    assert not hidden.check(["7"])


def test_twenty_questions():
    asking = Asking("cat", "")
    assert asking.respond(["Is it alive?"]) == {"role": "user", "content": "Yes."}
    assert asking.respond(["Can it fly?"]) == {"role": "user", "content": "No."}
    assert asking.respond(["Guess: cat"]) is None
    assert asking.check(["Is it alive?", "Guess: cat"])
    assert not asking.check(["Hm?", "Guess: cat"])
    assert not asking.check(["Guess: dog"])
    assert set(asking.candidates(["Is it alive?", "Does it have legs?"])) < set(THINGS)
    assert Answering("cat", "", "Can it fly?").check(["No"])
    assert len(THINGS) >= 50
    assert all(properties <= set(PROPERTIES) for properties in THINGS.values())
