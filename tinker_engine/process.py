"""Watch a process that need not be a child of this one."""

import os
import select
import signal
import subprocess
import time
from typing import Self

_FALLBACK_STEP = 0.1  # seconds between looks where the system has no pidfd


class Process:
    """A running process.

    Where the system has pidfds (Linux) the end wakes the waiter, and a later process that gets the
    same number is never mistaken for this one.
    """

    def __init__(self, pid: int, child: subprocess.Popen[bytes] | None = None):
        """Raises `ProcessLookupError` if there is no such process. `child` if this process started it."""
        self.pid = pid
        self._child = child
        self._pidfd: int | None = None
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            raise
        except (AttributeError, OSError):  # not Linux; an old kernel, or a sandbox that forbids it
            if child is None:
                os.kill(pid, 0)

    @classmethod
    def of_child(cls, child: subprocess.Popen[bytes]) -> Self:
        return cls(child.pid, child)

    def gone(self, within: float | None) -> bool:
        """Whether it ends within so many seconds; None waits until it does."""
        if self._pidfd is None:
            return self._gone_by_looking(within)
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(None if within is None else within * 1000))

    def fate(self) -> str:
        """How it ended, once it has. The system tells exit codes to the parent only."""
        if self._child is None:
            return "how is known only to the process that started it"
        code = self._child.wait()
        if code >= 0:
            return f"it ended with exit code {code}"
        name = signal.Signals(-code).name
        hint = " (if nobody did that by hand, the machine ran out of memory)" if name == "SIGKILL" else ""
        return f"it was ended by {name}{hint}"

    def _gone_by_looking(self, within: float | None) -> bool:
        deadline = None if within is None else time.monotonic() + within
        while self._exists():
            left = _FALLBACK_STEP if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, _FALLBACK_STEP))
        return True

    def _exists(self) -> bool:
        if self._child is not None:
            return self._child.poll() is None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def __del__(self):
        if self._pidfd is not None:
            os.close(self._pidfd)
