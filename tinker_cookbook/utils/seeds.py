"""Seeds of parts from the seed of the whole."""

import hashlib


def derive_seed(*parts: int | str, bits: int = 31) -> int:
    """A function of the parts, the same in every process, which `hash` is not. 31 bits are what every server takes."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> (64 - bits)
