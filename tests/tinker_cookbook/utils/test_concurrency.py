"""Nothing is left behind, and nothing waits for ever."""

import asyncio
import traceback

import pytest

from tinker_cookbook.utils.concurrency import cancel_all, finish_despite_cancel, gather_or_cancel
from tinker_cookbook.utils.seeds import derive_seed


async def waits(ended: list[str]) -> str:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)  # cleaning up takes a moment
        ended.append("cleaned up")
    return "never"


async def fails() -> str:
    await asyncio.sleep(0)
    raise KeyError("mine")


async def gives(value: str, turns: int) -> str:
    for _ in range(turns):
        await asyncio.sleep(0)
    return value


def test_results_come_in_the_order_they_were_asked_for():
    assert asyncio.run(gather_or_cancel([gives("a", 5), gives("b", 1)])) == ["a", "b"]
    assert asyncio.run(gather_or_cancel([])) == []


def test_the_first_failure_is_raised_as_it_is_when_the_others_have_cleaned_up():
    ended: list[str] = []

    async def main() -> None:
        async with asyncio.timeout(10):
            await gather_or_cancel([waits(ended), fails(), waits(ended)])

    with pytest.raises(KeyError, match="mine") as raised:
        asyncio.run(main())
    assert "in fails" in "".join(traceback.format_tb(raised.value.__traceback__))
    assert ended == ["cleaned up"] * 2


def test_cancelling_reaches_all():
    ended: list[str] = []

    async def main() -> None:
        task = asyncio.ensure_future(gather_or_cancel([waits(ended), waits(ended)]))
        for _ in range(3):  # until all wait
            await asyncio.sleep(0)
        await cancel_all([task])
        assert task.cancelled()

    asyncio.run(main())
    assert ended == ["cleaned up"] * 2


def test_what_must_not_be_left_half_done_is_finished_and_the_cancel_then_felt():
    done: list[str] = []

    async def work() -> None:
        done.append(await gives("first", 3))
        done.append(await gives("second", 3))

    async def main() -> None:
        task = asyncio.ensure_future(finish_despite_cancel(work()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == ["first", "second"]

    asyncio.run(main())
    assert asyncio.run(finish_despite_cancel(gives("x", 1))) == "x"
    with pytest.raises(KeyError, match="mine"):
        asyncio.run(finish_despite_cancel(fails()))


def test_seeds_are_the_same_in_every_process_and_differ_by_every_part():
    assert derive_seed(0, 1, 2) == 140497541
    assert derive_seed(0, 12) != derive_seed(0, 1, 2) != derive_seed(0, 2, 1)
    seeds = {derive_seed(7, "test", i) for i in range(1000)}
    assert len(seeds) == 1000
    assert 0 <= min(seeds) <= max(seeds) < 2**31
    assert max(derive_seed(i, bits=63) for i in range(100)) > 2**31
