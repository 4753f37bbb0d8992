"""Which parts of a decode step run on all threads.

A step of few rows is thousands of small operations. Handing each to a pool of threads costs more than it saves,
and on a machine that is busy otherwise a single descheduled thread stalls every one of them. So a step runs
`serial()`, and only its large products ask for the whole pool.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

_pool: int | None = None  # size of the pool while a serial section is open


@contextmanager
def serial() -> Iterator[None]:
    """Run on one thread, but for what is under `parallel()`."""
    global _pool
    if _pool is not None:
        yield
        return
    _pool = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(_pool)
        _pool = None


class _Parallel:
    """A class, not a generator: it is entered hundreds of times a step."""

    def __enter__(self) -> None:
        if _pool is not None:
            torch.set_num_threads(_pool)

    def __exit__(self, *_: object) -> None:
        if _pool is not None:
            torch.set_num_threads(1)


_PARALLEL = _Parallel()
_UNCHANGED = nullcontext()
_WORTH_SHARING = 1_000_000  # multiplications, some ten microseconds: as long as it takes to share them


def parallel(multiplications: int = _WORTH_SHARING) -> AbstractContextManager[None]:
    """All threads for this block, within a serial section or not, if it is that much work."""
    return _PARALLEL if multiplications >= _WORTH_SHARING else _UNCHANGED


def threads_for(multiplications: int) -> int:
    """How many threads a kernel of ours should use for so much work, in a serial section or not."""
    if multiplications < _WORTH_SHARING:
        return 1
    return torch.get_num_threads() if _pool is None else _pool


_LARGE_WEIGHT = 500_000  # elements: no core's cache holds it, so reading it is the work, whatever the rows
_LARGE_PRODUCT = 8_000_000  # multiplications with a weight that a core's cache holds


def parallel_product(rows: int, weight: int) -> AbstractContextManager[None]:
    """All threads for a product of so many rows with a weight of so many elements, if it is large.

    On a machine whose other cores are busy, with the client for one, a shared product waits for its slowest part:
    what takes a fraction of a millisecond alone is left alone.
    """
    return _PARALLEL if weight >= _LARGE_WEIGHT or rows * weight >= _LARGE_PRODUCT else _UNCHANGED
