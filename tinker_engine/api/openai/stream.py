"""Several samples as one stream, and clients that go away."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

T = TypeVar("T")


class ClientGone(Exception):
    """Nobody is there to read the answer."""


async def merge(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """The items of all streams as they come, each with its stream's number. Closing it closes them all."""
    waiting: dict[asyncio.Task[T | None], int] = {}
    try:
        for number, stream in enumerate(streams):
            waiting[asyncio.create_task(_next(stream))] = number
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=waiting.__getitem__):
                number = waiting.pop(task)
                item = task.result()
                if item is not None:
                    waiting[asyncio.create_task(_next(streams[number]))] = number
                    yield number, item
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(
            *waiting, return_exceptions=True
        )  # one error is enough: it is on its way already
        for stream in streams:
            await stream.aclose()


async def _next(stream: AsyncIterator[T]) -> T | None:
    return await anext(stream, None)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled if the client goes away."""
    working = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        finished = working.done()
        working.cancel()
        gone.cancel()
        await asyncio.wait((working, gone))
    if not finished and working.cancelled():
        raise ClientGone
    return working.result()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events. Unlike Starlette's own streams it closes its source, at once, when the client goes
    away, and lets that take its time: the source gives back what it holds in the engine."""

    media_type = "text/event-stream"

    def __init__(self, first: str, events: AsyncGenerator[str, None]):
        """The first event was waited for outside, where a failure can still become a status code."""
        self.status_code = 200
        self.background = None
        self._first, self._events = first, events
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientGone):
            await while_connected(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            await _send(send, start)
            await self._send_event(send, self._first)
            async for event in events:
                await self._send_event(send, event)
            await _send(send, {"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_event(self, send: Send, event: str) -> None:
        body = f"data: {event}\n\n".encode()
        await _send(send, {"type": "http.response.body", "body": body, "more_body": True})


async def _send(send: Send, message: Message) -> None:
    try:
        await send(message)
    except OSError as error:  # how some servers say that the client has gone
        raise ClientGone from error
