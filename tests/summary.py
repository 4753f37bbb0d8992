"""Run the project's checks one after the other and end with one line for each.

python tests/summary.py lint types unit
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

PYTHON = sys.executable
PROCESSES = str(max(2, min(4, (os.cpu_count() or 1) // 2)))  # much of the time goes into starting servers
PARALLEL = ["-n", PROCESSES, "--dist", "loadfile"]
MOST_SECONDS = 1800.0  # of one check: what hangs is ended and said to have failed
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
        environment = os.environ | {"OMP_NUM_THREADS": "1"} if name in ("unit", "long") else None
        if name == "long" and environment is not None:
            environment["TINKER_ENGINE_CLIENT_HTTP"] = "pyqwest"  # few clients, so as users have it
        passed = all(run(command, environment, started + MOST_SECONDS) for command in CHECKS[name])
        results.append((name, passed, time.monotonic() - started))
    print("=== summary")
    for name, passed, seconds in results:
        print(f"{name:6} {'passed' if passed else 'FAILED'} in {seconds:.0f} s")
    return 0 if all(passed for _, passed, _ in results) else 1


def run(command: list[str], environment: dict[str, str] | None, until: float) -> bool:
    """In a group of its own, so that nothing is left of it when it must be ended."""
    process = subprocess.Popen(command, env=environment, process_group=0)
    try:
        return process.wait(max(1.0, until - time.monotonic())) == 0
    except subprocess.TimeoutExpired:
        print(f"ended: it was not done after {MOST_SECONDS / 60:.0f} minutes", flush=True)
        return False
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C does, so that the servers of tests are ended too; by force if that does not help."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(20)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
