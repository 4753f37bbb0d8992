"""Drawing tokens: which distribution, and which of its tokens.

Shapes: B rows, V vocabulary. A row's draw depends on its own logits and its own random number alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tinker_engine.native import ops
from tinker_engine.sampling.types import TokenLogprob

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
Word = TypeVar("Word", int, np.ndarray)  # 64 bits without a sign, one or many

_BLOCK = 64  # tokens per block of the two-level search
_HEAD = 1024  # candidates looked at first for top-p; the whole vocabulary is sorted only if they don't do


@dataclass(frozen=True)
class Draw:
    """How one row's token is chosen."""

    uniform: float  # in [0, 1)
    temperature: float
    top_k: int = -1
    top_p: float = 1.0
    alternatives: int = 0  # how many of the most likely tokens to report

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def cut(self) -> bool:
        return not self.greedy and (self.top_k > 0 or self.top_p < 1)


@dataclass(frozen=True)
class Chosen:
    token: int
    logprob: float
    alternatives: list[TokenLogprob]


def uniform(seed: int, sample: int, position: int) -> float:
    """A number in [0, 1) that is a function of its three arguments (SplitMix64's finaliser, chained)."""
    state = 0
    for part in (seed, sample, position):
        state = _mix((state ^ (part & _MASK)) + _GOLDEN)
    return (state >> 11) * 2.0**-53


def uniforms(seed: int, sample: int, positions: np.ndarray) -> np.ndarray:
    """`uniform` at each of the positions."""
    state = 0
    for part in (seed, sample):
        state = _mix((state ^ (part & _MASK)) + _GOLDEN)
    states = _mix((np.uint64(state) ^ positions.astype(np.uint64)) + np.uint64(_GOLDEN))
    return (states >> 11) * 2.0**-53


def _mix(z: Word) -> Word:
    z &= _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def choose(logits_BV: Tensor, draws: Sequence[Draw]) -> list[Chosen]:
    """One token per row. `logits_BV` is overwritten."""
    greedy = [row for row, draw in enumerate(draws) if draw.greedy]
    likeliest = logits_BV[greedy].argmax(-1)  # of the logits: close ones round to equal probabilities
    probs_BV = _distributions(logits_BV, draws)
    tokens = _search(probs_BV, torch.tensor([draw.uniform for draw in draws], dtype=torch.float64))
    tokens[greedy] = likeliest
    tokens.clamp_(max=probs_BV.shape[1] - 1)  # the search finds no token among NaNs; their logprob says so
    logprobs = probs_BV.gather(1, tokens[:, None])[:, 0].log()
    return [
        Chosen(token, logprob, _most_likely(probs_BV[row], draw.alternatives))
        for row, (token, logprob, draw) in enumerate(
            zip(tokens.tolist(), logprobs.tolist(), draws, strict=True)
        )
    ]


def _distributions(logits_BV: Tensor, draws: Sequence[Draw]) -> Tensor:
    wide_BV = logits_BV if logits_BV.dtype == torch.float64 else logits_BV.float()
    temperatures = [1.0 if draw.greedy else draw.temperature for draw in draws]
    if any(temperature != 1 for temperature in temperatures):
        wide_BV.div_(torch.tensor(temperatures, dtype=wide_BV.dtype, device=wide_BV.device)[:, None])
    probs_BV = _softmax(wide_BV)
    for row, draw in enumerate(draws):
        if draw.cut:
            probs_BV[row] = _cut(probs_BV[row], draw.top_k, draw.top_p)
    return probs_BV


def _softmax(logits_BV: Tensor) -> Tensor:
    """Overwrites the logits, perhaps."""
    if not (ops.serves(logits_BV.dtype, logits_BV.device) and logits_BV.is_contiguous()):
        return torch.softmax(logits_BV, dim=-1)
    ops.scaled_exp_(logits_BV, ops.log_sum_exp(logits_BV), torch.ones(len(logits_BV)))
    return logits_BV


def _cut(probs_V: Tensor, top_k: int, top_p: float) -> Tensor:
    """Keep the top_k most likely tokens, of those the fewest that reach top_p; renormalise."""
    size = len(probs_V)
    most = min(top_k, size) if top_k > 0 else size
    values, tokens = torch.topk(probs_V, min(most, max(_HEAD, top_k)))
    if top_p < 1:
        if len(values) < most and float(values.double().sum()) < top_p:
            values, tokens = torch.sort(probs_V, descending=True, stable=True)
        wide = values.double()
        share = wide / wide.sum() if top_k > 0 else wide
        keep = int((share.cumsum(0) - share < top_p).sum())
        values, tokens = values[:keep], tokens[:keep]
    cut = torch.zeros_like(probs_V)
    cut[tokens] = (values.double() / values.double().sum()).to(cut.dtype)
    return cut


def _search(probs_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """Inverse of the cumulative distribution, in vocabulary order: find the block, then the token in it."""
    rows, vocabulary = probs_BV.shape
    if vocabulary % _BLOCK:
        probs_BV = F.pad(probs_BV, (0, _BLOCK - vocabulary % _BLOCK))
    blocks = probs_BV.view(rows, -1, _BLOCK)
    mass = blocks.sum(-1).double().cumsum(-1)
    wanted = uniform_B.to(mass.device)[:, None] * mass[:, -1:]
    block = torch.searchsorted(mass, wanted, right=True).clamp_(max=mass.shape[1] - 1)
    before = F.pad(mass, (1, 0)).gather(1, block)
    inside = blocks.gather(1, block[..., None].expand(-1, -1, _BLOCK))[:, 0].double()
    place = torch.searchsorted(inside.cumsum(-1), wanted - before, right=True).clamp_(max=_BLOCK - 1)
    # Rounding between the two levels can point past the block's last possible token.
    impossible = inside.gather(1, place) == 0
    place = torch.where(impossible, inside.argmax(-1, keepdim=True), place)
    return (block * _BLOCK + place)[:, 0]


def draw_many(logits_TV: Tensor, temperature: float, uniform_TK: Tensor) -> Tensor:
    """K independent tokens per row, uncut: those at the given places of each cumulative distribution."""
    if temperature == 0:
        return logits_TV.argmax(-1, keepdim=True).expand(uniform_TK.shape)
    mass_TV = torch.softmax(logits_TV / temperature, dim=-1).double().cumsum(-1)
    wanted = uniform_TK.to(mass_TV.device) * mass_TV[:, -1:]
    # Beyond the vocabulary the search points among NaNs only; their logprob says so.
    return torch.searchsorted(mass_TV, wanted, right=True).clamp_(max=mass_TV.shape[1] - 1)


def _most_likely(probs_V: Tensor, count: int) -> list[TokenLogprob]:
    if count == 0:
        return []
    values, tokens = torch.topk(probs_V, min(count, len(probs_V)))
    return [(t, p) for t, p in zip(tokens.tolist(), values.log().tolist(), strict=True) if p != float("-inf")]
