"""How many tokens fit into one forward and backward pass."""

import torch

from tinker_engine.model.memory import free_bytes
from tinker_engine.model.spec import ModelSpec

SHARE_OF_FREE = (
    0.5  # of free memory that activations may take; the rest is for everything else on the machine
)


def activation_room(device: torch.device) -> int:
    """Bytes that may be spent on activations now."""
    return int(free_bytes(device) * SHARE_OF_FREE)


def activation_bytes(spec: ModelSpec, rank: int, dtype: torch.dtype, *, recompute: bool) -> int:
    """Bytes that one token needs: what the autograd functions save, and one layer's temporaries."""
    d, q, kv, inner = spec.hidden_size, spec.q_width, spec.kv_width, spec.intermediate_size
    saved = 4 * d + 2 * q + 2 * kv + 2 * inner + 7 * rank + spec.num_heads
    temporary = 8 * d + 4 * q + 6 * inner
    kept = d * spec.num_layers + saved if recompute else saved * spec.num_layers
    return (kept + temporary) * dtype.itemsize
