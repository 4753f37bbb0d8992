"""From rendered conversations to datums, and from logprobs to figures."""

import math
from collections.abc import Sequence
from typing import Literal

import tinker
import torch

from tinker_cookbook.exceptions import DataValidationError
from tinker_cookbook.tokenizer_utils import Tokenizer

Reduction = Literal["none", "mean"]


def datum_from_model_input_weights(
    model_input: tinker.ModelInput,
    weights: torch.Tensor,
    max_length: int | None = None,
    reduction: Reduction = "none",
) -> tinker.Datum:
    """Cut to `max_length`, shift by one, and weight each target with the weight of its own token.

    With "mean" the weights of a datum sum to 1, so that every example counts the same, however long.
    """
    if reduction not in ("none", "mean"):
        raise ValueError(f"Unknown reduction mode {reduction!r}; there are none and mean")
    chunks = _without_trailing_images(_cut(model_input.chunks, max_length))
    inputs, targets = create_rightshifted_model_input_and_leftshifted_targets(chunks)
    kept = weights[1 : len(targets) + 1].to(torch.float32)
    if reduction == "mean" and (total := kept.sum()) > 0:
        kept = kept / total
    return tinker.Datum(
        model_input=inputs,
        loss_fn_inputs={
            "weights": tinker.TensorData(data=kept.tolist(), dtype="float32", shape=[len(kept)]),
            "target_tokens": tinker.TensorData(data=targets, dtype="int64", shape=[len(targets)]),
        },
    )


def _cut(chunks: Sequence[tinker.ModelInputChunk], max_length: int | None) -> list[tinker.ModelInputChunk]:
    """The first `max_length` tokens: text where it must be, images whole or not at all."""
    kept: list[tinker.ModelInputChunk] = []
    room = math.inf if max_length is None else max_length
    for chunk in chunks:
        if chunk.length > room:
            if isinstance(chunk, tinker.EncodedTextChunk):
                kept.append(tinker.EncodedTextChunk(tokens=chunk.tokens[: int(room)]))
            break
        kept.append(chunk)
        room -= chunk.length
    return [c for c in kept if not isinstance(c, tinker.EncodedTextChunk) or len(c.tokens)]


def _without_trailing_images(chunks: list[tinker.ModelInputChunk]) -> list[tinker.ModelInputChunk]:
    while chunks and not isinstance(chunks[-1], tinker.EncodedTextChunk):
        chunks = chunks[:-1]
    return chunks


def create_rightshifted_model_input_and_leftshifted_targets(
    chunks: list[tinker.ModelInputChunk],
) -> tuple[tinker.ModelInput, list[int]]:
    """All tokens but the last as input, all but the first as targets. Of an image nothing is a target (0)."""
    if not chunks or not isinstance(chunks[-1], tinker.EncodedTextChunk):
        raise DataValidationError("an example must end in text, for its last token is what is learned last")
    if sum(chunk.length for chunk in chunks) < 2:
        raise DataValidationError("an example needs at least two tokens: one to be given, one to be learned")
    last = tinker.EncodedTextChunk(tokens=chunks[-1].tokens[:-1])
    inputs = [*chunks[:-1], *([last] if len(last.tokens) else [])]
    tokens = [token for chunk in chunks for token in _tokens(chunk)]
    return tinker.ModelInput(chunks=inputs), tokens[1:]


def _tokens(chunk: tinker.ModelInputChunk) -> Sequence[int]:
    return chunk.tokens if isinstance(chunk, tinker.EncodedTextChunk) else [0] * chunk.length


# --- figures ----------------------------------------------------------------------------------------------


def compute_mean_nll(
    logprobs_list: Sequence[tinker.TensorData], weights_list: Sequence[tinker.TensorData]
) -> float:
    """The weighted mean of -logprob over all of the batch; nan if nothing has weight."""
    total = weight = 0.0
    for logprobs, weights in zip(logprobs_list, weights_list, strict=True):
        weights_T = weights.to_torch().double()
        total -= float(logprobs.to_torch().double().flatten() @ weights_T.flatten())
        weight += float(weights_T.sum())
    return total / weight if weight else math.nan


def compute_bpb(
    logprobs_list: Sequence[tinker.TensorData],
    weights_list: Sequence[tinker.TensorData],
    target_tokens_list: Sequence[tinker.TensorData],
    tokenizer: Tokenizer,
) -> float:
    """Bits per byte of the text that is learned: comparable between tokenizers, as a loss per token is not.

    Counted are tokens of any positive weight that are not special. nan if they make no byte.
    """
    special: set[int] = set(getattr(tokenizer, "all_special_ids", ()))
    nats, size = 0.0, 0
    rows = zip(logprobs_list, weights_list, target_tokens_list, strict=True)
    for logprobs, weights, targets in rows:
        run: list[int] = []  # counted tokens in a row: a character may be spread over several
        for logprob, weight, token in zip(logprobs.tolist(), weights.tolist(), targets.tolist(), strict=True):
            if weight > 0 and not _is_special(token, special, tokenizer):
                nats -= logprob
                run.append(token)
            elif run:
                size += _byte_count(run, tokenizer)
                run = []
        size += _byte_count(run, tokenizer) if run else 0
    return nats / (math.log(2) * size) if size else math.nan


def _is_special(token: int, special: set[int], tokenizer: Tokenizer) -> bool:
    if token in special:
        return True
    is_special = getattr(tokenizer, "is_special_token", None)
    return bool(is_special(token)) if is_special is not None else False


def _byte_count(tokens: Sequence[int], tokenizer: Tokenizer) -> int:
    return len(str(tokenizer.decode(tokens)).encode())
