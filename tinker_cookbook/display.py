"""Datums and trajectories as text, to look at what is trained on."""

from typing import TYPE_CHECKING, Protocol

import tinker

from tinker_cookbook.exceptions import DataValidationError
from tinker_cookbook.utils.format_colorized import Decoder, format_colorized

if TYPE_CHECKING:
    from tinker_cookbook.rl.types import Trajectory, Transition


class Tokenizer(Decoder, Protocol):
    def encode(self, text: str, /, *, add_special_tokens: bool = True) -> list[int]: ...


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
    """What the policy saw, did and got, step by step.

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
    if trajectory.stop_reason is not None:
        lines.append(f"stopped: {trajectory.stop_reason}")
    return "\n".join(lines)


def _transition_lines(
    index: int, transition: "Transition", known: list[int], tokenizer: Tokenizer
) -> list[str]:
    observation = _tokens(transition.ob, tokenizer)
    goes_on = bool(known) and observation[: len(known)] == known
    new = observation[len(known) :] if goes_on else observation
    lines = [
        f"====== step {index} ======",
        f"--- observation ({len(observation)} tokens{f', the last {len(new)} new' if goes_on else ''}) ---",
        tokenizer.decode(new),
        f"--- action ({len(transition.ac.tokens)} tokens) ---",
        tokenizer.decode(list(transition.ac.tokens)),
        f"--- reward {transition.reward:g}{', episode done' if transition.episode_done else ''} ---",
    ]
    lines += [f"{name}: {value}" for name, value in {**transition.metrics, **transition.logs}.items()]
    return lines


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
