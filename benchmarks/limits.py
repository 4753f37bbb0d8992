"""What this machine can do at best: its matrix-multiplication rate and its memory bandwidth.

python -m benchmarks.limits        writes benchmarks/results/limits.json
"""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import tinker_engine  # noqa: F401  (sets how OpenMP's threads wait, before torch is imported)

import torch  # isort: skip

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Limits:
    gemm_flops: float  # fp32, per second, all threads
    bandwidth: float  # bytes read per second


def measure(seconds: float = 1.0) -> Limits:
    """The median over short bursts: one burst says little on a machine that others share."""
    size = 1536
    a, b, out = (torch.randn(size, size) for _ in range(3))
    large = torch.randn(64 * 1024 * 1024)
    gemm = _median_seconds(lambda: torch.mm(a, b, out=out), seconds)
    read = _median_seconds(lambda: large.sum(), seconds)
    return Limits(2 * size**3 / gemm, large.numel() * large.itemsize / read)


def _median_seconds(work: Callable[[], Any], seconds: float) -> float:
    work()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def machine() -> dict[str, Any]:
    return {
        "cpu": _cpu_name(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def write(name: str, command: str, figures: dict[str, Any]) -> Path:
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"command": command, "machine": machine(), **figures}, indent=2) + "\n")
    return path


def main() -> None:
    limits = measure(3.0)
    print(
        f"fp32 matrix multiplication {limits.gemm_flops / 1e9:7.1f} GFLOP/s on {torch.get_num_threads()} threads"
    )
    print(f"memory bandwidth (reading) {limits.bandwidth / 1e9:7.1f} GB/s")
    print(f"written to {write('limits', 'python -m benchmarks.limits', asdict(limits)).name}")


if __name__ == "__main__":
    main()
