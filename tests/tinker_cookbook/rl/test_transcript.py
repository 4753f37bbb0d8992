"""Which advantage each sampled token was trained with, found again in the datums."""

import pytest
import tinker

from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.rl.transcript import (
    advantages_by_turn,
    largest_advantage,
    mean_advantage,
    transcript_of,
)
from tinker_cookbook.rl.types import Trajectory, Transition


class Bytes:
    def decode(self, token_ids: list[int]) -> str:
        return bytes(token_ids).decode("latin-1")

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode("latin-1"))


def turn(ob: list[int], ac: list[int]) -> Transition:
    return Transition(tinker.ModelInput.from_ints(ob), TokensWithLogprobs(ac, [-1.0] * len(ac)), 0.0, False)


def datum(sequence: list[int], advantages: list[float], mask: list[int] | None = None) -> tinker.Datum:
    """By place in the sequence, and shifted here as training data is."""
    kept = [float(value != 0) for value in advantages] if mask is None else [float(value) for value in mask]
    size = [len(sequence) - 1]
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(sequence[:-1]),
        loss_fn_inputs={
            "target_tokens": tinker.TensorData(data=sequence[1:], dtype="int64", shape=size),
            "advantages": tinker.TensorData(data=advantages[1:], dtype="float32", shape=size),
            "mask": tinker.TensorData(data=kept[1:], dtype="float32", shape=size),
        },
    )


FIRST, SECOND, THIRD = (
    turn([1, 2], [10, 11]),
    turn([1, 2, 10, 11, 3], [12]),
    turn([1, 2, 10, 11, 3, 12], [13, 14]),
)


def test_turns_that_go_on_share_a_datum():
    whole = datum([1, 2, 10, 11, 3, 12, 13, 14], [0, 0, 0.125, 0.25, 0, 0.375, 0.75, 0.5])
    assert advantages_by_turn([FIRST, SECOND, THIRD], [whole]) == [[0.125, 0.25], [0.375], [0.75, 0.5]]
    assert mean_advantage([whole]) == pytest.approx(0.4)
    assert largest_advantage([[whole], []]) == 0.75


def test_a_new_beginning_is_a_new_datum():
    again = turn([1, 2], [10, 11])  # the very same tokens
    data_D = [datum([1, 2, 10, 11], [0, 0, 0.125, 0.25]), datum([1, 2, 10, 11], [0, 0, -0.375, -0.75])]
    assert advantages_by_turn([FIRST, again], data_D) == [[0.125, 0.25], [-0.375, -0.75]]
    shorter = turn([5], [10])
    data_D = [datum([1, 2, 10, 11, 3, 12], [0, 0, 0.125, 0.25, 0, 0.375]), datum([5, 10], [0, 0.625])]
    assert advantages_by_turn([FIRST, SECOND, shorter], data_D) == [[0.125, 0.25], [0.375], [0.625]]


def test_tokens_kept_out_of_the_loss_have_none_and_an_advantage_of_zero_is_one():
    masked = datum([1, 2, 10, 11, 3, 12], [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1])
    assert advantages_by_turn([FIRST, SECOND], [masked]) == [[None, None], [0.0]]
    assert (mean_advantage([masked]), largest_advantage([[masked]])) == (0.0, None)


def test_turns_that_no_datum_holds():
    assert advantages_by_turn([FIRST, SECOND], []) == [None, None]
    lone = datum([1, 2, 10, 11, 3, 12], [0, 0, 0, 0, 0, 0.5])
    assert advantages_by_turn([turn([1, 2], [99, 11]), SECOND], [lone]) == [None, [0.5]]
    assert advantages_by_turn([turn([1, 2], []), SECOND], [lone]) == [None, [0.5]]
    assert mean_advantage([]) is None


def test_the_first_token_after_an_empty_observation_is_nobodys_target():
    assert advantages_by_turn([turn([], [10, 11])], [datum([10, 11], [0.5, 0.5])]) == [[None, 0.5]]


def test_images_count_with_their_length():
    image = tinker.types.ImageChunk(data=b"", format="png", expected_tokens=3)
    seen = tinker.ModelInput(chunks=[tinker.EncodedTextChunk(tokens=[1]), image])
    step = Transition(seen, TokensWithLogprobs([10, 11], [-1.0, -1.0]), 0.0, True)
    made = datum([1, 0, 0, 0, 10, 11], [0, 0, 0, 0, 0.125, 0.25])
    assert advantages_by_turn([step], [made]) == [[0.125, 0.25]]
    transcript = transcript_of(Trajectory([step], tinker.ModelInput.empty()), [made], Bytes())
    assert bytes(transcript.turns[0].observation[1:]) == b"<image>"


def test_observations_show_what_is_new():
    trajectory = Trajectory([FIRST, SECOND, turn([5], [10])], tinker.ModelInput.from_ints([5, 10, 6]))
    transcript = transcript_of(trajectory, [], Bytes())
    assert [(each.observation, each.goes_on) for each in transcript.turns] == [
        ([1, 2], False),
        ([3], True),
        ([5], False),
    ]
    assert (transcript.ending, transcript.ending_goes_on) == ([6], True)
