"""The body of a request, within a limit."""

from starlette.requests import Request

from tinker_engine.errors import InputError
from tinker_engine.wire.body import unpack


class TooLargeError(InputError):
    """A body beyond the limit."""


async def read_body(request: Request, most: int) -> bytes:
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > most:
        raise TooLargeError(
            "body", f"has {declared} bytes; at most {most} are accepted: send less data at a time"
        )
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise TooLargeError("body", f"is longer than {most} bytes: send less data at a time")
        parts.append(part)
    return unpack(b"".join(parts), request.headers.get("content-encoding"), most_bytes=most)
