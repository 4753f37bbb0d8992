"""What goes into a training call and what comes out of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class CsrMatrix:
    """A sparse [T, K] array; absent cells are zero."""

    values: np.ndarray
    row_starts: np.ndarray  # T + 1 offsets into values
    columns: np.ndarray
    shape: tuple[int, int]


ArrayLike = np.ndarray | Tensor | Sequence[float] | Sequence[Sequence[float]] | CsrMatrix


@dataclass(frozen=True)
class Datum:
    """One sequence. Position i of every loss input speaks of the token that follows `tokens[i]`."""

    tokens: Sequence[int] | np.ndarray
    loss_fn_inputs: Mapping[str, ArrayLike] = field(default_factory=dict)


@dataclass(frozen=True)
class ForwardBackwardOutput:
    logprobs: list[Tensor]  # per datum, in the shape of its target_tokens
    metrics: dict[str, float]  # names end in how the metric combines: ":sum", ":mean", ":max"


@dataclass(frozen=True)
class AdamParams:
    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0  # decoupled, as in AdamW
    grad_clip_norm: float = 0.0  # 0 leaves gradients as they are


@dataclass(frozen=True)
class Example:
    """A datum that passed every check, as tensors. K targets per position are flattened to T·K entries."""

    tokens_T: np.ndarray  # int64
    targets_TK: Tensor  # int64 [T, K]
    inputs_TK: dict[str, Tensor]  # float32 [T, K]; everything the loss reads but the targets
    target_shape: torch.Size  # how the caller shaped target_tokens: [T] or [T, K]

    def __len__(self) -> int:
        return len(self.tokens_T)
