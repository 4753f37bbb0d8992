"""Python, torch, processor, memory."""

import os
import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata

from tinker_engine import config
from tinker_engine.commands.checks.finding import Finding, failed, ok, warning
from tinker_engine.commands.table import size

LEAST_PYTHON = (3, 11)
LEAST_TORCH = (2, 13)
LITTLE_MEMORY, TOO_LITTLE_MEMORY = 2_000_000_000, 500_000_000  # the tiny model alone needs the second


def python() -> Iterator[Finding]:
    text = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < LEAST_PYTHON:
        least = ".".join(map(str, LEAST_PYTHON))
        yield failed("Python", text, f"install Python {least} or newer, and make a new environment with it")
    else:
        yield ok("Python", text)


def torch() -> Iterator[Finding]:
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a shared library it needs is missing
        yield failed("torch", f"cannot be imported: {error}", f"{sys.executable} -m pip install torch")
        return
    found = version_numbers(torch.__version__)
    if found < LEAST_TORCH:
        least = ".".join(map(str, LEAST_TORCH))
        yield failed(
            "torch", f"{torch.__version__} is too old", f"{sys.executable} -m pip install 'torch>={least}'"
        )
        return
    yield ok("torch", str(torch.__version__))


def processor() -> Iterator[Finding]:
    import torch

    from tinker_engine.model.device import pick_device, pick_dtype

    device = pick_device()
    dtype = str(pick_dtype(device)).removeprefix("torch.")
    level = torch.backends.cpu.get_cpu_capability()
    text = f"{level}, computes in {dtype} on {device.type}"
    if platform.machine().lower() in ("x86_64", "amd64") and not level.startswith("AVX"):
        yield warning(
            "processor", f"{text}: it has no AVX2, or torch does not use it", "unset ATEN_CPU_CAPABILITY"
        )
    else:
        yield ok("processor", text)


def kernels() -> Iterator[Finding]:
    import torch

    from tinker_engine.native import build, ops

    if ops.serves(torch.float32, torch.device("cpu")):
        yield ok("kernels", f"compiled for this processor, in {config.home() / 'native'}")
    elif os.environ.get(build.SWITCH) == "0":
        yield warning(
            "kernels", "switched off; torch computes alone and is slower on a CPU", f"unset {build.SWITCH}"
        )
    else:
        problem = build.problem() or "they could not be loaded"
        yield warning("kernels", f"{problem}; torch computes alone and is slower on a CPU", "apt install gcc")


def threads() -> Iterator[Finding]:
    import torch

    used, cores = torch.get_num_threads(), _own_cores()
    text = f"{used} of {cores} cores"
    if used > cores:
        yield warning(
            "threads", f"{used}, but only {cores} cores may be used", f"export OMP_NUM_THREADS={cores}"
        )
    elif used < cores and "OMP_NUM_THREADS" in os.environ:
        yield warning("threads", f"{text}, because OMP_NUM_THREADS says so", "unset OMP_NUM_THREADS")
    else:
        yield ok("threads", text)


def memory() -> Iterator[Finding]:
    from tinker_engine.model.device import pick_device
    from tinker_engine.model.memory import free_bytes

    free = free_bytes(pick_device())
    if free < TOO_LITTLE_MEMORY:
        yield failed("memory", f"{size(free)} free", "close other programs, or take a larger machine")
    elif free < LITTLE_MEMORY:
        yield warning(
            "memory", f"{size(free)} free is enough for small models only", "ask: tinker-engine plan MODEL"
        )
    else:
        yield ok("memory", f"{size(free)} free")


def sdk() -> Iterator[Finding]:
    oldest, newest = (0, 25), (0, 36)
    wanted = "'tinker>=0.25,<0.37'"
    install = f"{sys.executable} -m pip install {wanted}"
    try:
        version = metadata.version("tinker")
    except metadata.PackageNotFoundError:
        yield warning(
            "tinker SDK", "not installed in this environment; clients need it, the engine does not", install
        )
        return
    found = version_numbers(version)
    if found < oldest:
        yield failed("tinker SDK", f"{version} is older than what the engine serves", install)
    elif found > newest:
        yield warning("tinker SDK", f"{version} is newer than what the engine was tested with", install)
    else:
        yield ok("tinker SDK", version)


def version_numbers(version: str) -> tuple[int, int]:
    """Major and minor: (2, 13) of 2.13.0+cpu."""
    major, minor = re.findall(r"\d+", version)[:2]
    return int(major), int(minor)


def _own_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
