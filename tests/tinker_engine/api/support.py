"""An app behind a real server on a random port of the loopback interface, and who is asking it."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.requests import Request
from starlette.types import ASGIApp


class _Server(uvicorn.Server):
    def __init__(self, app: ASGIApp):
        super().__init__(uvicorn.Config(app, log_level="warning", lifespan="off"))
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


@contextmanager
def serving(app: ASGIApp) -> Iterator[str]:
    """The server's address, while it runs."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = _Server(app)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            assert server.ready.wait(30), "the server did not start"
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive(), "the server did not end"


def someone(_: Request) -> str:
    """In the place of authentication."""
    return "someone"
