"""How many tokens fit into one forward and backward pass."""

import torch

from tinker_engine.errors import MemoryLimitError
from tinker_engine.model.memory import free_bytes
from tinker_engine.model.spec import ModelSpec

SHARE_OF_FREE = (
    0.5  # of free memory that activations may take; the rest is for everything else on the machine
)
MOST_TOKENS = 2048  # of a micro-batch; larger ones are no faster, and take more memory


def activation_room(device: torch.device) -> int:
    """Bytes that may be spent on activations now."""
    return int(free_bytes(device) * SHARE_OF_FREE)


def activation_bytes(spec: ModelSpec, rank: int, dtype: torch.dtype, *, recompute: bool) -> int:
    """Bytes that one token needs: what the autograd functions save, and one layer's temporaries."""
    d, q, kv, inner = spec.hidden_size, spec.q_width, spec.kv_width, spec.intermediate_size
    # Two norms and their inputs; q, k, v before (of which v is a part) and after rotation; the attention's output.
    saved = 4 * d + 3 * q + 3 * kv + 2 * inner + 7 * rank + spec.num_heads
    temporary = 8 * d + 4 * q + 6 * inner
    kept = d * spec.num_layers + saved if recompute else saved * spec.num_layers
    return (kept + temporary) * dtype.itemsize


def micro_batch_tokens(spec: ModelSpec, rank: int, dtype: torch.dtype, room: int, longest: int) -> int:
    """Tokens per micro-batch within `room` bytes, if a sequence of `longest` tokens can be computed at all."""
    least = longest * activation_bytes(spec, rank, dtype, recompute=True)
    if least > room:
        raise MemoryLimitError(
            f"a sequence of {longest} tokens needs about {least / 1e9:.1f} GB for activations and "
            f"{room / 1e9:.1f} GB may be used; shorten it or free memory"
        )
    fits = room // activation_bytes(spec, rank, dtype, recompute=False)
    return max(1, min(fits, MOST_TOKENS if longest <= MOST_TOKENS else longest))
