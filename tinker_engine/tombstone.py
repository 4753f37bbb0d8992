"""What answers on an engine's port once the engine is dead.

Clients of the Tinker API take a refused connection for a network problem and retry for minutes without a
word. So the processes that used the engine take over its port and tell every caller the reason, with a status
that is not retried.
"""

import errno
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any
from urllib.parse import urlsplit

_PORT_RETRY = 1.0  # seconds until the next attempt at a port that another process has


def stand_in(url: str, reason: str) -> None:
    """Answer at `url`, an address of the loopback, for the rest of this process's life.

    If the port is taken, by another process that used the engine or by a new engine, that is just as well,
    but its holder may leave before we do.
    """
    parts = urlsplit(url)
    address = (parts.hostname or "127.0.0.1", parts.port or 80)
    while (server := _bind(address, reason)) is None:
        time.sleep(_PORT_RETRY)
    # A forked child has no thread that would answer: it must not keep the port open.
    os.register_at_fork(after_in_child=server.socket.close)
    server.serve_forever(poll_interval=60)


def _bind(address: tuple[str, int], reason: str) -> "_Tombstone | None":
    try:
        return _Tombstone(address, reason)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return None


class _Tombstone(ThreadingTCPServer):
    """Not an `HTTPServer`: that looks up the host's name when it starts, which can take seconds."""

    allow_reuse_address = True  # connections of the dead engine may linger
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], reason: str):
        super().__init__(address, _Answer)
        self.body = json.dumps({"error": reason}).encode()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a caller that hung up is no news
            super().handle_error(request, client_address)


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30
    server: _Tombstone  # pyright: ignore[reportIncompatibleVariableOverride]

    def _answer(self) -> None:
        self._drain()
        # The SDK repeats refused telemetry for 30 s before it raises the error that the telemetry is about.
        telemetry = self.path.endswith("/api/v1/telemetry")
        body = b'{"status": "accepted"}' if telemetry else self.server.body
        self.send_response(200 if telemetry else 400)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))  # the SDK retries a 400 without one
        self.send_header("connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _drain(self) -> None:
        """Closing with unread input resets the connection, and the caller would never see the answer."""
        left = int(self.headers.get("content-length") or 0)
        while left > 0 and (chunk := self.rfile.read(min(left, 1 << 16))):
            left -= len(chunk)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _answer

    def log_message(self, format: str, *args: object) -> None:
        """Callers are told; the user's terminal is not the place."""
