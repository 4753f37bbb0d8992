"""The worker's end of the socket pair: blocking writes, reads that need not wait."""

import pickle
import select
import socket
import threading

from tinker_engine.backends.messages import HEADER, FromWorker, ToWorker, frame

READ_BYTES = 1 << 20


class Channel:
    def __init__(self, connection: socket.socket):
        self._socket = connection
        self._buffer = bytearray()
        self._sending = threading.Lock()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    @property
    def ready(self) -> bool:
        """Whether something has come in."""
        return self.ready_within(0)

    def ready_within(self, seconds: float) -> bool:
        return bool(self._poll.poll(1000 * seconds))

    def send(self, message: FromWorker) -> None:
        with self._sending:
            self._socket.sendall(frame(message))

    def receive(self, *, wait: bool) -> list[ToWorker]:
        """What has come in; with `wait`, at least one message. EOFError once the other side is gone."""
        messages: list[ToWorker] = []
        while wait or self.ready:
            data = self._socket.recv(READ_BYTES)
            if not data:
                raise EOFError
            self._buffer += data
            messages += self._complete()
            wait = wait and not messages
        return messages

    def _complete(self) -> list[ToWorker]:
        messages: list[ToWorker] = []
        start = 0
        while len(self._buffer) - start >= HEADER.size:
            (length,) = HEADER.unpack_from(self._buffer, start)
            end = start + HEADER.size + length
            if len(self._buffer) < end:
                break
            messages.append(pickle.loads(memoryview(self._buffer)[start + HEADER.size : end]))
            start = end
        del self._buffer[:start]
        return messages
