"""Signals that are never missed by an event loop that waits."""

import asyncio
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def wakes_on_signals() -> Iterator[None]:
    """While the block runs, a signal wakes the running loop, and with it Python's handler of that signal.

    Otherwise a Ctrl-C that comes in the instant before the loop begins to wait, or to another thread, is seen only
    when something else happens, which may be never.
    """
    loop = asyncio.get_running_loop()
    if threading.current_thread() is not threading.main_thread() or not hasattr(loop, "add_reader"):
        yield  # handlers run in the main thread alone
        return
    woken, waking = socket.socketpair()
    woken.setblocking(False)
    waking.setblocking(False)
    try:
        loop.add_reader(woken, woken.recv, 4096)
    except NotImplementedError:  # loops of Windows, which wake by themselves
        woken.close()
        waking.close()
        yield
        return
    before = signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        loop.remove_reader(woken)
        woken.close()
        waking.close()
