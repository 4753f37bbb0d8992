"""Whatever a model writes is parsed, and what a renderer wrote comes back as it was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tinker_cookbook.renderers.families import (
    BY_NAME,
    DISTINCT,
    comparable,
    read_back,
    renderer_of,
)
from tests.tinker_cookbook.renderers.strategies import QUICK, answers, responses
from tinker_cookbook.renderers import Message, ParseTermination

QUESTION = Message(role="user", content="Well?")


def produced(renderer, answer: Message) -> list[int]:
    """What a model would have sampled to give this answer."""
    tokens, weights = renderer.build_supervised_example([QUESTION, answer])
    return [token for token, weight in zip(tokens.to_ints(), weights.tolist(), strict=True) if weight]


@pytest.mark.parametrize("name", DISTINCT)
@QUICK
@given(data=st.data())
def test_an_answer_comes_back(name, data):
    family = BY_NAME[name]
    renderer = renderer_of(family)
    answer = data.draw(answers(family))
    tokens = produced(renderer, answer)
    message, termination = renderer.parse_response(tokens)
    assert termination is ParseTermination.STOP_SEQUENCE
    assert comparable(message) == read_back(family, answer)
    assert produced(renderer, message) == tokens


@pytest.mark.parametrize("name", DISTINCT)
@QUICK
@given(data=st.data())
def test_garbage_is_parsed(name, data):
    family = BY_NAME[name]
    renderer = renderer_of(family)
    response = data.draw(responses(family))
    message, termination = renderer.parse_response(response)
    assert message["role"] == "assistant"
    assert isinstance(termination, ParseTermination)
    if family.streams:
        *_, last = renderer.parse_response_streaming(response)
        assert isinstance(last, dict)
