"""Run the project's checks one after the other and end with one line for each.

python tests/summary.py lint types unit
"""

import os
import subprocess
import sys
import time

PYTHON = sys.executable
PROCESSES = str(max(2, min(4, (os.cpu_count() or 1) // 2)))  # much of the time goes into starting servers
PARALLEL = ["-n", PROCESSES, "--dist", "loadfile"]
CHECKS: dict[str, list[list[str]]] = {
    "lint": [
        [PYTHON, "-m", "ruff", "check", "."],
        [PYTHON, "-m", "ruff", "format", "--check", "--quiet", "."],
    ],
    "types": [[PYTHON, "-m", "basedpyright"]],
    "unit": [[PYTHON, "-m", "pytest", "-m", "not long and not real", *PARALLEL, "--no-loadscope-reorder"]],
    "long": [[PYTHON, "-m", "pytest", "-m", "long", *PARALLEL]],
    "real": [[PYTHON, "-m", "pytest", "-m", "real"]],
}


def main(names: list[str]) -> int:
    results: list[tuple[str, bool, float]] = []
    for name in names:
        print(f"=== {name}", flush=True)
        started = time.monotonic()
        one_thread_each = os.environ | {"OMP_NUM_THREADS": "1"} if name in ("unit", "long") else None
        passed = all(
            subprocess.run(command, check=False, env=one_thread_each).returncode == 0
            for command in CHECKS[name]
        )
        results.append((name, passed, time.monotonic() - started))
    print("=== summary")
    for name, passed, seconds in results:
        print(f"{name:6} {'passed' if passed else 'FAILED'} in {seconds:.0f} s")
    return 0 if all(passed for _, passed, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
