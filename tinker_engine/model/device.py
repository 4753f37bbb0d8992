"""Which device and which number format to compute with."""

import torch

from tinker_engine.errors import InputError

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


def pick_device(requested: str | None = None) -> torch.device:
    """The device asked for, checked to be there; without a wish the fastest kind there is."""
    counts = {
        "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "mps": 1 if torch.backends.mps.is_available() else 0,
        "cpu": 1,
    }
    if requested is None:
        return torch.device(next(kind for kind, count in counts.items() if count))
    kind, _, index = requested.partition(":")
    valid = [name for name, count in counts.items() if count]
    if kind not in counts or (index and not index.isdecimal()):
        raise InputError("device", f"{requested!r} is unknown; this machine has: {', '.join(valid)}")
    if int(index or 0) >= counts[kind]:
        raise InputError("device", f"{requested!r} is not on this machine, which has: {', '.join(valid)}")
    return torch.device(requested)


def pick_dtype(device: torch.device, requested: str | None = None) -> torch.dtype:
    """The format asked for; without a wish bfloat16 on a graphics card, else float32.

    float32 on CPUs with bfloat16 units, too: only so do sampler and trainer agree to 1e-4. And our kernels, which are
    for float32, sampled faster than torch in bfloat16 where both were tried, with AVX-512's units; AMX was not.
    """
    if requested is None:
        # On cards without bfloat16 units as well: they compute it, and float16 would need loss scaling.
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if requested not in DTYPES:
        raise InputError("dtype", f"{requested!r} is unknown; valid are: {', '.join(DTYPES)}")
    dtype = DTYPES[requested]
    if device.type == "mps" and dtype is torch.float64:
        raise InputError("dtype", "float64 does not exist on mps; use float32, or device cpu")
    return dtype
