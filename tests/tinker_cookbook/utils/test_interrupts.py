import asyncio
import selectors
import signal
import threading

import pytest

from tinker_cookbook.utils.interrupts import wakes_on_signals

PATIENCE = 30  # seconds


class Noticing(selectors.DefaultSelector):
    """Says when the loop is about to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = threading.Event()

    def select(self, timeout=None):
        if timeout is None or timeout > 0:
            self.waits.set()
        return super().select(timeout)


def hit(waits: threading.Event) -> None:
    """A signal to a thread that is not the main one, whose wait is not ended by it."""
    waits.wait()
    signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)


@pytest.fixture
def handler():
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda function: signal.signal(signal.SIGUSR1, function)
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_that_another_thread_got_wakes_the_loop(handler):
    selector = Noticing()
    late: list[bool] = []

    async def main() -> None:
        seen = asyncio.Event()
        handler(lambda *_: seen.set())
        asyncio.get_running_loop().call_later(PATIENCE, late.append, True)
        with wakes_on_signals():
            thread = threading.Thread(target=hit, args=(selector.waits,))
            selector.waits.clear()
            thread.start()
            await seen.wait()
            thread.join()

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(main())
    assert not late  # it was not time that woke it


def test_what_was_there_before_is_there_after():
    async def main() -> None:
        outer = signal.set_wakeup_fd(-1)
        with wakes_on_signals():
            assert signal.set_wakeup_fd(-1) != outer
        assert signal.set_wakeup_fd(outer) == outer

    asyncio.run(main())


def test_in_another_thread_it_does_nothing():
    async def main() -> int:
        with wakes_on_signals():
            return 1

    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(asyncio.run(main())))
    thread.start()
    thread.join()
    assert results == [1]
