import asyncio
import signal
import threading

import pytest

from tinker_cookbook.utils.interrupts import wakes_on_signals


def hit() -> None:
    """A signal to a thread that is not the main one, whose wait is not ended by it."""
    signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)


@pytest.fixture
def handler():
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda function: signal.signal(signal.SIGUSR1, function)
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_that_another_thread_got_wakes_the_loop(handler):
    async def main() -> None:
        seen = asyncio.Event()
        handler(lambda *_: seen.set())
        with wakes_on_signals():
            thread = threading.Thread(target=hit)
            thread.start()
            await asyncio.wait_for(seen.wait(), timeout=30)
            thread.join()

    asyncio.run(main())


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
