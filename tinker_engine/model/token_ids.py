"""Small facts about arrays of token ids."""

from collections.abc import Sequence

import numpy as np

from tinker_engine.errors import InputError
from tinker_engine.model.spec import ModelSpec


def check_tokens(tokens: Sequence[int] | np.ndarray, where: str, model: ModelSpec) -> np.ndarray:
    """A one-dimensional int64 array within the vocabulary and the context."""
    try:
        array = np.array(tokens)  # a copy: the caller may change theirs
    except ValueError as error:
        raise InputError(where, f"must be a flat list of token ids: {error}") from error
    if array.size == 0:
        raise InputError(where, "is empty; at least one token is needed")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(where, f"must be a flat list of token ids, got {array.dtype} of shape {array.shape}")
    if len(array) > model.max_context:
        raise InputError(where, f"has {len(array)} tokens; the model's context is {model.max_context}")
    check_vocabulary(array, where, model)
    return array.astype(np.int64, copy=False)


def check_vocabulary(ids: np.ndarray, where: str, model: ModelSpec) -> None:
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= model.vocab_size:
        wrong = low if low < 0 else high
        raise InputError(where, f"token id {wrong} is outside the vocabulary 0..{model.vocab_size - 1}")


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """How many leading tokens are the same."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    return int(np.argmax(differs)) if differs.any() else n
