"""Seeds of parts from the seed of the whole."""

import hashlib

_BITS = 31  # what any server takes as a seed


def derive_seed(*parts: int | str) -> int:
    """A number that is a function of the parts, on every machine."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - _BITS)
