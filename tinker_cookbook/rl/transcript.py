"""A trajectory as turns to read: what each observation adds, what was sampled, how each token was trained."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import tinker

from tinker_cookbook.display import to_ints
from tinker_cookbook.rl.types import Trajectory, Transition
from tinker_cookbook.tokenizer_utils import Tokenizer


@dataclass(frozen=True)
class Turn:
    transition: Transition
    observation: list[int]  # tokens; only what is new, if it goes on from the turn before
    goes_on: bool
    advantages: list[float | None] | None
    """Of each token of the action, None for those kept out of the loss; None in all if they were not trained on."""


@dataclass(frozen=True)
class Transcript:
    turns: list[Turn]
    ending: list[int]  # tokens of the last observation, which was not acted upon
    ending_goes_on: bool


def transcript_of(trajectory: Trajectory, data_D: Sequence[tinker.Datum], tokenizer: Tokenizer) -> Transcript:
    """`data_D`: what the trajectory was made into for training; empty if it was not trained on."""
    turns: list[Turn] = []
    known: list[int] = []
    advantages = advantages_by_turn(trajectory.transitions, data_D)
    for transition, values_T in zip(trajectory.transitions, advantages, strict=True):
        tokens = observation_tokens(transition.ob, tokenizer)
        new, goes_on = _new_tokens(tokens, known)
        turns.append(Turn(transition, new, goes_on, values_T))
        known = tokens + list(transition.ac.tokens)
    return Transcript(turns, *_new_tokens(observation_tokens(trajectory.final_ob, tokenizer), known))


def observation_tokens(observation: tinker.ModelInput, tokenizer: Tokenizer) -> list[int]:
    """With the tokens of a placeholder such as `<image>` for what is not text."""
    return [token for chunk in observation.chunks for token in to_ints(chunk, tokenizer)]


def _new_tokens(tokens: list[int], known: list[int]) -> tuple[list[int], bool]:
    goes_on = bool(known) and tokens[: len(known)] == known
    return (tokens[len(known) :] if goes_on else tokens), goes_on


# --- advantages -------------------------------------------------------------------------------------------


def advantages_by_turn(
    transitions: Sequence[Transition], data_D: Sequence[tinker.Datum]
) -> list[list[float | None] | None]:
    """Of each turn, the values of the tokens of its action; None if no datum holds them.

    The tokens of an action stand in its datum right after the whole observation. A datum ends with an action: the next
    turn is in the same datum if there is more of it, else in a later one.
    """
    found: list[list[float | None] | None] = []
    sequences = [[None, *datum.loss_fn_inputs["target_tokens"].data] for datum in data_D]
    values = [_own_advantages(datum) for datum in data_D]
    index, end = 0, 0  # the datum of the turn before, and where in it that turn's action ends
    for transition in transitions:
        start, tokens = transition.ob.length, list(transition.ac.tokens)
        holding = next(
            (
                later
                for later in range(index, len(data_D))
                if start >= (end if later == index else 0) and _holds(sequences[later], start, tokens)
            ),
            None,
        )
        if holding is None or not tokens:
            found.append(None)
            continue
        index, end = holding, start + len(tokens)
        found.append(values[index][start:end])
    return found


def _holds(sequence: Sequence[float | None], start: int, tokens: list[int]) -> bool:
    """Whether these tokens stand there. The very first token of a sequence is nobody's target, and is not compared."""
    there = sequence[start : start + len(tokens)]
    return len(there) == len(tokens) and all(
        own is None or own == token for own, token in zip(there, tokens, strict=True)
    )


def _own_advantages(datum: tinker.Datum) -> list[float | None]:
    """By place in the sequence, where place i + 1 is the target of position i."""
    values, mask = datum.loss_fn_inputs["advantages"].data, datum.loss_fn_inputs["mask"].data
    return [None, *(value if kept else None for value, kept in zip(values, mask, strict=True))]


def mean_advantage(data_D: Sequence[tinker.Datum]) -> float | None:
    """Over the tokens that are trained on; a penalty may have made them differ within a trajectory."""
    values = [value for datum in data_D for value in _own_advantages(datum) if value is not None]
    return sum(values) / len(values) if values else None


def largest_advantage(data_G: Sequence[Sequence[tinker.Datum]]) -> float | None:
    """The largest finite one, whatever its sign, if there is one apart from zero."""
    sizes = (
        abs(value)
        for data_D in data_G
        for datum in data_D
        for value in _own_advantages(datum)
        if value is not None and math.isfinite(value)
    )
    return max(sizes, default=0.0) or None
