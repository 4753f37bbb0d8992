"""What every handler shares: who asks, the body, and errors as JSON."""

import json
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from tinker_engine.api.auth import Access
from tinker_engine.api.body import TooLargeError, read_body
from tinker_engine.core.engine import Engine
from tinker_engine.core.records import Op
from tinker_engine.errors import (
    AccessError,
    BusyError,
    DamagedError,
    EngineError,
    InputError,
    ModelError,
    NotFoundError,
    UnsupportedError,
)
from tinker_engine.wire.body import read_json
from tinker_engine.wire.fields import Fields

log = logging.getLogger(__name__)

PROTOBUF, JSON = "application/x-protobuf", "application/json"

Handler = Callable[["Call"], Awaitable[Response]]


class Call:
    """One request, with its owner known."""

    def __init__(self, request: Request, engine: Engine, owner: str, body: bytes):
        self.request = request
        self.engine = engine
        self.owner = owner
        self.body = body

    @property
    def path(self) -> dict[str, str]:
        return self.request.path_params

    def json(self) -> Fields:
        return read_json(self.body or b"{}")

    def page(self, default: int) -> tuple[int, int]:
        """`offset` and `limit` of a listing."""
        query = Fields({name: _number(value) for name, value in self.request.query_params.items()})
        return query.integer("offset", 0, least=0), query.integer("limit", default, least=0, most=10_000)


def endpoint(method: str, path: str, handler: Handler, engine: Engine, access: Access) -> Route:
    async def handle(request: Request) -> Response:
        try:
            owner = access.owner(credential(request))
            body = await read_body(request, engine.settings.limits.body_bytes)
            return await handler(Call(request, engine, owner, body))
        except ClientDisconnect:
            return error_response(400, "the client went away", "user")
        except Exception as error:  # the boundary: every answer is JSON
            return respond_to(error)

    return Route(path, handle, methods=[method])


def respond_to(error: Exception) -> Response:
    """4xx for what the caller can change, 429 for what will pass, 500 with an id for what is our fault.

    Never 409, and 5xx only for bugs: the SDK retries those for minutes.
    """
    match error:
        case AccessError():
            return error_response(401, str(error), "user")
        case NotFoundError():
            return error_response(404, str(error), "user")
        case TooLargeError():
            return error_response(413, str(error), "user")
        case InputError() | ModelError() | DamagedError() | UnsupportedError():
            return error_response(400, str(error), "user")
        case BusyError():
            headers = {"retry-after": f"{error.retry_after:.0f}"}
            return error_response(429, str(error), "server", headers)
        case EngineError():
            # A full disk and the like: the caller cannot help it, but minutes of silent retries do not either.
            log.error("refused: %s", error)
            return error_response(400, str(error), "server")
        case _:
            reference = secrets.token_hex(4)
            log.error("internal error %s", reference, exc_info=error)
            message = f"internal error {reference} ({type(error).__name__}); the engine's log has the details"
            return error_response(500, message, "server", {"x-should-retry": "false"})


def error_response(
    status: int, message: str, category: str, headers: dict[str, str] | None = None
) -> Response:
    return answer({"error": message, "detail": message, "category": category}, status, headers)


def answer(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(content, separators=(",", ":")), status, headers, media_type=JSON)


def accepted(op: Op, **more: Any) -> Response:
    return answer({"request_id": op.request_id, **more})


def credential(request: Request) -> str | None:
    key = request.headers.get("x-api-key")
    if key:
        return key
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _number(value: str) -> int | str:
    return int(value) if value.isdecimal() and len(value) < 20 else value
