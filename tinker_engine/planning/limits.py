"""What this machine can do at best: its matrix-multiplication rate and its memory bandwidth."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tinker_engine.native import ops

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Limits:
    gemm_flops: float  # per second, all threads
    bandwidth: float  # bytes read per second


def measure(
    seconds: float = 1.0,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device = _CPU,
    summary: Callable[[Sequence[float]], float] = statistics.median,
) -> Limits:
    """By default the median over short bursts: one burst says little on a machine that others share.

    The rate of multiplication is that of torch, or of our kernel where it is faster.
    """
    rates = product_rates(seconds, dtype=dtype, device=device, summary=summary)
    large = torch.randn(64 * 1024 * 1024, device=device)
    read = summary(times(lambda: large.sum(), seconds, device))
    return Limits(max(rates.values()), large.numel() * large.itemsize / read)


def product_rates(
    seconds: float,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device = _CPU,
    summary: Callable[[Sequence[float]], float] = statistics.median,
) -> dict[str, float]:
    """FLOP/s of a large product, of all that can compute it here."""
    size = 1536
    a, b, out = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(3))
    products: dict[str, Callable[[], Any]] = {"torch": lambda: torch.mm(a, b, out=out)}
    if ops.serves(dtype, device):
        packed = ops.pack(b)
        products["kernel"] = lambda: ops.put_product(out, a, packed)
    return {name: 2 * size**3 / summary(times(work, seconds, device)) for name, work in products.items()}


def times(work: Callable[[], Any], seconds: float, device: torch.device = _CPU) -> list[float]:
    """How long `work` takes, again and again for so many seconds but at least three times."""
    work()
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken) < 3:
        _wait(device)
        started = time.perf_counter()
        work()
        _wait(device)
        taken.append(time.perf_counter() - started)
    return taken


def _wait(device: torch.device) -> None:
    """A GPU is handed its work and goes on by itself."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
