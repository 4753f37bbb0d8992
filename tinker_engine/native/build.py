"""Compile the kernels, once for each machine and version of them."""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from tinker_engine.config import home

SOURCE = Path(__file__).with_name("kernels.c")
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fopenmp", "-shared", "-fPIC")
SWITCH = "TINKER_ENGINE_NATIVE"  # 0: torch alone
SECONDS = 120  # after which a compiler is given up

logger = logging.getLogger(__name__)


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels, or None where they are switched off or cannot be had."""
    import torch  # noqa: F401  # first: the kernels use the threads of its OpenMP, which must be the one that is loaded

    if os.environ.get(SWITCH) == "0":
        return None
    try:
        return ctypes.CDLL(str(compiled(home() / "native")))
    except _FAILURES as error:
        logger.warning("no kernels of our own, torch computes alone and is slower: %s", error)
        return None


def problem() -> str | None:
    """Why there are no kernels, in words."""
    try:
        compiled(home() / "native")
    except _FAILURES as error:
        return str(error)
    return None


class CompilerError(Exception):
    """There is no compiler, or it does not take our source."""


_FAILURES = (OSError, subprocess.SubprocessError, CompilerError)


def compiled(folder: Path) -> Path:
    """The library in `folder`, compiled if it is not there yet."""
    command = shutil.which(os.environ.get("CC", "cc"))
    if command is None:
        raise CompilerError("there is no C compiler (on Debian: apt install gcc)")
    version = subprocess.run(
        [command, "--version"], capture_output=True, text=True, timeout=SECONDS, check=True
    )
    made_of = (SOURCE.read_text(), *FLAGS, version.stdout, platform.machine(), _features())
    key = hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:16]
    place = folder / f"{key}.so"
    if not place.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as workshop:
            made = Path(workshop) / place.name
            result = subprocess.run(
                [command, *FLAGS, str(SOURCE), "-o", str(made), "-lm"],
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
            if result.returncode != 0:
                raise CompilerError(
                    f"{command} could not compile the kernels: {result.stderr.strip()[-500:]}"
                )
            made.replace(place)  # in one step: another process may be doing the same
    return place


def _features() -> str:
    """What the processor can do: a home directory may be shared by different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
