"""How much memory there is to spend."""

import ctypes
import sys

import psutil
import torch


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return min(psutil.virtual_memory().available, _cgroup_free())


def _cgroup_free() -> int:
    """A container's own limit, which the system-wide figures do not show."""
    unlimited = 1 << 62
    try:
        with open("/sys/fs/cgroup/memory.max") as limit, open("/sys/fs/cgroup/memory.current") as used:
            ceiling = limit.read().strip()
            return int(ceiling) - int(used.read()) if ceiling != "max" else unlimited
    except (OSError, ValueError):
        return unlimited


def give_back_memory() -> None:
    """Return free pages to the system. Batches of ever new sizes leave holes, which glibc keeps by itself."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries have none
        if trim is not None:
            trim(0)
