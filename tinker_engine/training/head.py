"""The language-model head in chunks of rows: logprobs forward, gradients backward, never all logits at once.

Shapes: S rows of hidden states, D model width, V vocabulary, N entries. An entry is one (row, target)
whose logprob somebody asked for; a row may have several (many targets, or a prefix shared by sequences).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from tinker_engine.model.decoder import Decoder, Pause
from tinker_engine.model.linear import LoraPair
from tinker_engine.model.lora import Adapter
from tinker_engine.native import ops

CHUNK_ELEMENTS = 16 * 1024 * 1024  # logits held at a time; 64 MB in fp32

EntryGradient = Callable[[Tensor, Tensor], Tensor]
"""(entry numbers, their logprobs) → gradient of the loss by those logprobs."""


@dataclass(frozen=True)
class Entries:
    row_N: Tensor
    target_N: Tensor


@dataclass(frozen=True)
class _Chunk:
    rows_C: Tensor  # rows of the hidden states
    entries: Tensor  # numbers of the entries that lie in them
    local: Tensor  # for each such entry, its place in rows_C


def head_pass(
    decoder: Decoder,
    adapter: Adapter | None,
    hidden_SD: Tensor,
    entries: Entries,
    gradient: EntryGradient | None = None,
    likely_N: Tensor | None = None,
    pause: Pause | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Logprobs of all entries and, with `gradient`, that of the hidden states. Calls `pause` before each chunk.

    The head's own LoRA gradients are added to the adapter's bound buffers. Rows whose gradient is zero
    cost no backward work; `likely_N` marks entries that may have one, so that such rows end up together.
    """
    pair = adapter.pairs.get("head") if adapter is not None else None
    logprob_N = torch.empty(len(entries.row_N), dtype=_wide(hidden_SD.dtype), device=hidden_SD.device)
    d_hidden = torch.zeros_like(hidden_SD) if gradient is not None else None
    with decoder.head.many_input_grads():
        for chunk in _chunks(entries, len(hidden_SD), decoder.spec.vocab_size, likely_N):
            if pause is not None:
                pause()
            x_CD = hidden_SD[chunk.rows_C]
            logits = decoder.head(x_CD)
            low_rank = pair.add_to(logits, x_CD) if pair is not None else None
            logits = logits.to(logprob_N.dtype)
            lse_C = _log_sum_exp(logits)
            targets = entries.target_N[chunk.entries]
            logprobs = logits[chunk.local, targets] - lse_C[chunk.local]
            logprob_N[chunk.entries] = logprobs
            if gradient is None or d_hidden is None:
                continue
            d_logprob = gradient(chunk.entries, logprobs)
            touched = torch.zeros_like(lse_C, dtype=torch.bool)
            touched[chunk.local[d_logprob != 0]] = True
            if not touched.any():
                continue
            d_logits = _logit_gradient(logits, lse_C, chunk.local, targets, d_logprob)
            rows_C = chunk.rows_C
            if not touched.all():
                d_logits, x_CD, rows_C = d_logits[touched], x_CD[touched], rows_C[touched]
                low_rank = low_rank[touched] if low_rank is not None else None
            d_logits = d_logits.to(hidden_SD.dtype)
            d_x_CD = decoder.head.input_grad(d_logits)
            if pair is not None and low_rank is not None:
                _add_pair_gradients(pair, d_logits, x_CD, low_rank, d_x_CD)
            d_hidden[rows_C] = d_x_CD
    return logprob_N, d_hidden


def _logit_gradient(
    logits: Tensor, lse_C: Tensor, local: Tensor, targets: Tensor, d_logprob: Tensor
) -> Tensor:
    """Σ over entries of g·(onehot(target) − softmax), written over the logits."""
    d_row = torch.zeros_like(lse_C).index_add_(0, local, d_logprob)
    if ops.serves(logits.dtype, logits.device):
        ops.scaled_exp_(logits, lse_C, -d_row)
        d_logits = logits
    else:
        d_logits = logits.sub_(lse_C[:, None]).exp_().mul_(-d_row[:, None])
    # index_add_ on one axis adds in order; index_put_ may not, and bits must repeat.
    d_logits.view(-1).index_add_(0, local * logits.shape[1] + targets, d_logprob)
    return d_logits


def _log_sum_exp(logits: Tensor) -> Tensor:
    if ops.serves(logits.dtype, logits.device):
        return ops.log_sum_exp(logits)
    return torch.logsumexp(logits, dim=-1)


def _add_pair_gradients(
    pair: LoraPair, d_logits: Tensor, x_CD: Tensor, low_rank: Tensor, d_x_CD: Tensor
) -> None:
    """Add to the gradients of the head's A and B, and of its input."""
    weight_grads = pair.backward(d_logits, x_CD, low_rank, d_x_CD)
    for leaf, grad in zip((pair.a_JRK, pair.b_NR), weight_grads, strict=True):
        assert leaf.grad is not None, "the caller binds gradients"
        leaf.grad += grad


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _chunks(entries: Entries, rows: int, vocab_size: int, likely_N: Tensor | None) -> Iterator[_Chunk]:
    """Rows that have an entry, those likely to have a gradient first, in equal chunks."""
    device = entries.row_N.device
    wanted = torch.zeros(rows, dtype=torch.long, device=device)
    wanted[entries.row_N] = 1
    if likely_N is not None:
        wanted[entries.row_N[likely_N]] = 2
    order = torch.argsort(wanted, descending=True, stable=True)[: int((wanted > 0).sum())]
    size = max(16, CHUNK_ELEMENTS // vocab_size)
    place = torch.empty(rows, dtype=torch.long, device=device)  # of each row in `order`
    place[order] = torch.arange(len(order), device=device)
    entry_place, by_place = torch.sort(place[entries.row_N], stable=True)
    count = -(-len(order) // size)
    bounds = [len(order) * i // count for i in range(count + 1)]  # even chunks beat a ragged last one
    cuts = torch.searchsorted(entry_place, torch.tensor(bounds, device=device)).tolist()
    for i, (start, end) in enumerate(pairwise(bounds)):
        part = slice(cuts[i], cuts[i + 1])
        yield _Chunk(order[start:end], by_place[part], entry_place[part] - start)
