"""An engine ends with the last of the processes it lives for, whether or not the system can tell of their end."""

import asyncio
import os
import subprocess
import sys

import pytest

from tinker_engine.errors import BusyError, InputError
from tinker_engine.serve import Parents

WAIT = "import sys; sys.stdin.read()"


@pytest.mark.parametrize("pidfd", [True, False], ids=["the system tells", "by looking"])
def test_it_ends_with_the_last_parent(pidfd: bool, monkeypatch: pytest.MonkeyPatch):
    if not pidfd:
        monkeypatch.delattr(os, "pidfd_open")

    async def watch() -> None:
        ended = asyncio.Event()
        parents = Parents()
        parents.on_last = ended.set
        lives = [subprocess.Popen([sys.executable, "-c", WAIT], stdin=subprocess.PIPE) for _ in range(2)]
        for life in lives:
            parents.watch(life.pid)
        parents.watch(lives[0].pid)  # a second client of the same process
        for life in lives:
            assert not parents.ending
            life.communicate()
        await asyncio.wait_for(ended.wait(), 60)
        with pytest.raises(BusyError, match="is ending"):
            parents.watch(os.getpid())

    asyncio.run(watch())


def test_a_process_that_is_not_there_is_said():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with pytest.raises(InputError, match="is no process"):
        asyncio.run(_watch(gone.pid))


async def _watch(pid: int) -> None:
    Parents().watch(pid)
