"""Datums and trajectories as text, to look at what is trained on."""

from typing import TYPE_CHECKING

import tinker

from tinker_cookbook.exceptions import DataValidationError
from tinker_cookbook.tokenizer_utils import Tokenizer
from tinker_cookbook.utils.format_colorized import format_colorized

if TYPE_CHECKING:
    from tinker_cookbook.rl.types import Trajectory, Transition


def to_ints(chunk: tinker.ModelInputChunk, tokenizer: Tokenizer) -> list[int]:
    """The tokens of a chunk of text; of any other, the tokens of a placeholder such as `<image>`."""
    if isinstance(chunk, tinker.EncodedTextChunk):
        return list(chunk.tokens)
    return tokenizer.encode(f"<{chunk.type}>", add_special_tokens=False)


def colorize_example(datum: tinker.Datum, tokenizer: Tokenizer, key: str = "weights") -> str:
    """The sequence of a datum, each token in the colour of the weight with which its own prediction is trained.

    Position i of a datum reads token i and predicts token i + 1: the first token is nobody's prediction (yellow), and
    the last one is a target only. An image stands as a placeholder of no weight.
    """
    targets, weights = _loss_input(datum, "target_tokens"), _loss_input(datum, key)
    length = sum(chunk.length for chunk in datum.model_input.chunks)
    if not length == len(targets) == len(weights):
        raise DataValidationError(
            f"a datum needs one target and one value of {key!r} per position: {length} positions, {len(targets)} "
            f"targets, {len(weights)} values"
        )
    tokens: list[int] = []
    shown_weights: list[float] = []
    own_weights, position = [0.0, *weights], 0
    for chunk in datum.model_input.chunks:
        ints = to_ints(chunk, tokenizer)
        is_text = isinstance(chunk, tinker.EncodedTextChunk)
        tokens += ints
        shown_weights += own_weights[position : position + chunk.length] if is_text else [0.0] * len(ints)
        position += chunk.length
    if targets:
        tokens.append(int(targets[-1]))
        shown_weights.append(own_weights[-1])
    return format_colorized(tokens, shown_weights, tokenizer)


def format_trajectory(
    trajectory: "Trajectory", tokenizer: Tokenizer, only_last_transition: bool = False
) -> str:
    """What the policy saw, did and got, step by step, and what it would have seen next.

    An observation that goes on from the step before is shown from where it is new.
    """
    lines: list[str] = []
    known: list[int] = []
    last = len(trajectory.transitions) - 1
    for index, transition in enumerate(trajectory.transitions):
        if only_last_transition and index < last:
            continue
        lines += _transition_lines(index, transition, known, tokenizer)
        known = _tokens(transition.ob, tokenizer) + list(transition.ac.tokens)
    lines += _observation_lines(
        "final observation", _tokens(trajectory.final_ob, tokenizer), known, tokenizer
    )
    if trajectory.stop_reason is not None:
        lines.append(f"stopped: {trajectory.stop_reason}")
    return "\n".join(lines)


def _transition_lines(
    index: int, transition: "Transition", known: list[int], tokenizer: Tokenizer
) -> list[str]:
    return [
        f"====== step {index} ======",
        *_observation_lines("observation", _tokens(transition.ob, tokenizer), known, tokenizer),
        f"--- action ({len(transition.ac.tokens)} tokens) ---",
        tokenizer.decode(list(transition.ac.tokens)),
        f"--- reward {transition.reward:g}{', episode done' if transition.episode_done else ''} ---",
        *(f"{name}: {value}" for name, value in {**transition.metrics, **transition.logs}.items()),
    ]


def _observation_lines(title: str, tokens: list[int], known: list[int], tokenizer: Tokenizer) -> list[str]:
    goes_on = bool(known) and tokens[: len(known)] == known
    new = tokens[len(known) :] if goes_on else tokens
    if not new:
        return []
    of_them = f", the last {len(new)} new" if goes_on else ""
    return [f"--- {title} ({len(tokens)} tokens{of_them}) ---", tokenizer.decode(new)]


def _tokens(observation: tinker.ModelInput, tokenizer: Tokenizer) -> list[int]:
    return [token for chunk in observation.chunks for token in to_ints(chunk, tokenizer)]


def _loss_input(datum: tinker.Datum, key: str) -> list[int] | list[float]:
    if key not in datum.loss_fn_inputs:
        raise DataValidationError(
            f"the datum has no {key!r}; it has {', '.join(sorted(datum.loss_fn_inputs))}"
        )
    data = datum.loss_fn_inputs[key]
    if len(data.shape or [0]) != 1:
        raise DataValidationError(
            f"{key!r} of the datum has the shape {data.shape}; one value per position can be shown"
        )
    return data.data
