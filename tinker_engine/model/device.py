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
    """The format asked for; without a wish bfloat16 where the hardware multiplies it, else float32."""
    if requested is None:
        return torch.bfloat16 if _multiplies_bfloat16(device) else torch.float32
    if requested not in DTYPES:
        raise InputError("dtype", f"{requested!r} is unknown; valid are: {', '.join(DTYPES)}")
    dtype = DTYPES[requested]
    if device.type == "mps" and dtype is torch.float64:
        raise InputError("dtype", "float64 does not exist on mps; use float32, or device cpu")
    return dtype


def _multiplies_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return True  # cards without bf16 units still compute it, and float16 would need loss scaling
    if device.type == "cpu":
        # Without these units every bf16 product is widened first: slower than float32, and less exact.
        # Older releases of torch do not tell; then float32 is the safe answer.
        capabilities = getattr(torch.cpu, "get_capabilities", dict)()
        return bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))
    return False
