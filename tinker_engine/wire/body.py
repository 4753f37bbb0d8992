"""A request body as it came over HTTP → the bytes or the JSON object that was meant."""

import json
from typing import NoReturn

from tinker_engine.errors import InputError
from tinker_engine.wire.fields import Fields

MOST_BYTES = 1 << 30  # of an unpacked body


def unpack(body: bytes, content_encoding: str | None, *, most_bytes: int = MOST_BYTES) -> bytes:
    """Undo `Content-Encoding`. The SDK compresses only if the server's client config asks for it."""
    encoding = (content_encoding or "identity").strip().lower()
    if encoding == "identity":
        return body
    if encoding != "zstd":
        raise InputError("content-encoding", f"{encoding!r} is not supported; send zstd or no encoding")
    return _unpack_zstd(body, most_bytes)


def read_json(body: bytes) -> Fields:
    """The JSON object in `body`. NaN and Infinity, which Python would read, are no JSON."""
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputError("body", f"is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError("body", f"must be a JSON object, got a {type(value).__name__}")
    return Fields(value)


def _unpack_zstd(body: bytes, most_bytes: int) -> bytes:
    try:
        import zstandard
    except ImportError as error:
        raise InputError(
            "content-encoding",
            "this server cannot read zstd; send the body as it is, or install zstandard on the server",
        ) from error
    try:
        size = zstandard.frame_content_size(body)
        # A stream that does not say its size cannot be told from one that was cut off, or from a bomb.
        if size < 0:
            raise InputError("body", "is a zstd stream without its size; compress the body in one piece")
        if size > most_bytes:
            raise InputError("body", f"unpacks to {size} bytes; at most {most_bytes} are accepted")
        return zstandard.ZstdDecompressor().decompress(body, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise InputError("body", f"is no whole zstd frame: {error}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
