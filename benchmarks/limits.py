"""What this machine can do at best: its matrix-multiplication rate and its memory bandwidth.

python -m benchmarks.limits        writes benchmarks/results/limits.json
"""

import json
import os
import platform
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import tinker_engine  # noqa: F401  (sets how OpenMP's threads wait, before torch is imported)

import torch  # isort: skip

from tinker_engine.planning.limits import measure, product_rates

RESULTS = Path(__file__).parent / "results"


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
    limits, rates = measure(3.0), product_rates(3.0)
    print(
        f"fp32 matrix multiplication {limits.gemm_flops / 1e9:7.1f} GFLOP/s on {torch.get_num_threads()} threads"
    )
    print(f"by {', '.join(f'{name} {rate / 1e9:.1f}' for name, rate in rates.items())}")
    print(f"memory bandwidth (reading) {limits.bandwidth / 1e9:7.1f} GB/s")
    figures = {**asdict(limits), "gemm_flops_by": rates}
    print(f"written to {write('limits', 'python -m benchmarks.limits', figures).name}")


if __name__ == "__main__":
    main()
