"""The driver's side: workers as child processes, and what they and their children use of the machine."""

import json
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import psutil

HERE = Path(__file__).parent
LAST_LINES = 25
LONGEST = 1800.0  # seconds of one answer; who takes longer hangs


@dataclass(frozen=True)
class Contestant:
    """A worker of this folder and the environment it runs in; None: ours."""

    worker: str
    environment: str | None = None
    options: tuple[tuple[str, Any], ...] = ()  # added to what the workload says

    def command(self, environments: Path) -> list[str]:
        """Others run by path, so that nothing of this repository is imported in their environment."""
        if self.environment is None:
            return [sys.executable, "-m", f"benchmarks.peers.{self.worker}"]
        return [str(python_of(environments, self.environment)), str(HERE / f"{self.worker}.py")]

    def described(self) -> str:
        if self.environment is None:
            return f"python -m benchmarks.peers.{self.worker}"
        return f"{self.environment}/bin/python benchmarks/peers/{self.worker}.py"


def python_of(environments: Path, name: str) -> Path:
    return environments / name / "bin" / "python"


class Worker:
    """Ready for jobs once it is made. Its log is what it and its libraries printed."""

    def __init__(self, name: str, command: list[str], setup: dict[str, Any], log: Path):
        self._name = name
        self._log = log
        self._stderr: TextIO = log.open("w")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, text=True
        )
        self.about = self.ask(setup)

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it is gone: the log says why
        too_long = threading.Timer(LONGEST, self._process.kill)
        too_long.start()
        line = self._process.stdout.readline()
        too_long.cancel()
        if not line:
            last = self._log.read_text(errors="replace").splitlines()[-LAST_LINES:]
            raise SystemExit(f"{self._name} ended before its work; its last lines:\n" + "\n".join(last))
        return json.loads(line)

    def cpu_seconds(self) -> float:
        """Of it and of all its children that live."""
        return sum(times.user + times.system for times in (each.cpu_times() for each in self._tree()))

    def peak_mb(self) -> list[float]:
        """Peak resident memory of each process. Their sum is an upper bound: peaks may fall at different times."""
        return [round(_peak_kb(process.pid) / 1024, 1) for process in self._tree()]

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()

    def _tree(self) -> list[psutil.Process]:
        root = psutil.Process(self._process.pid)
        return [root, *root.children(recursive=True)]


def _peak_kb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    return 0  # a process that has ended and was not yet waited for
