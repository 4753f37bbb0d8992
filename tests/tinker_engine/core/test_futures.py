import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tinker_engine.core import futures as module
from tinker_engine.core.futures import LONG_BODY, SEQ_BLOCK, Futures
from tinker_engine.core.records import Op, OpKind
from tinker_engine.errors import BusyError, InputError, StorageError
from tinker_engine.store.database import Database


class Store:
    """One data directory; `futures()` is what an engine that is started on it sees."""

    def __init__(self, folder: Path):
        self.bodies = folder / "bodies"
        self._url = f"sqlite:///{folder / 'engine.db'}"
        self.database = Database(self._url, durable=False)

    def futures(self, most_queued: int = 100, most_bytes: int = 1 << 20) -> Futures:
        return Futures(
            self.database, self.bodies, durable=False, most_queued=most_queued, most_bytes=most_bytes
        )

    def restart(self) -> None:
        self.database.close()
        self.database = Database(self._url, durable=False)


@pytest.fixture
def store(tmp_path) -> Iterator[Store]:
    store = Store(tmp_path)
    yield store
    store.database.close()


async def accept(
    futures: Futures,
    seq_id: int,
    body: bytes = b"body",
    lane: str = "run",
    owner: str = "me",
    kind: OpKind = "forward_backward",
) -> tuple[Op, bool]:
    return await futures.accept(lane, seq_id, owner, kind, body, lambda: {"seed": 3})


async def finish(futures: Futures, op: Op, result: bytes = b"answer") -> None:
    futures.succeed(op, result, "application/json")
    assert await futures.wait(op, 30)


def test_a_repeated_request_is_the_same_request(store):
    async def main():
        futures = store.futures()
        op, made = await accept(futures, 1)
        again, made_again = await accept(futures, 1)
        assert (made, made_again) == (True, False)
        assert again is op
        await finish(futures, op)
        assert (await accept(futures, 1))[0].result == b"answer"
        return op.request_id

    assert asyncio.run(main()) == "run:1"


@pytest.mark.parametrize("change", [{"body": b"other"}, {"kind": "optim_step"}])
@pytest.mark.parametrize("when", ["waiting", "answered", "after a restart"])
def test_an_id_cannot_be_used_for_something_else(store, change, when):
    async def main():
        futures = store.futures()
        op, _ = await accept(futures, 1)
        if when != "waiting":
            await finish(futures, op)
        if when == "after a restart":
            store.restart()
            futures = store.futures()
        with pytest.raises(InputError, match="run:1 was already used for another forward_backward"):
            await accept(futures, 1, **change)

    asyncio.run(main())


@pytest.mark.parametrize("first", [None, 9], ids=["in order", "behind a later one"])
def test_equal_requests_at_the_same_time_are_executed_once(store, first):
    async def main():
        futures = store.futures(most_queued=3)
        if first is not None:
            await finish(futures, (await accept(futures, first))[0])
        results = await asyncio.gather(*(accept(futures, 5) for _ in range(20)))
        assert sum(made for _, made in results) == 1
        assert len({id(op) for op, _ in results}) == 1
        await finish(futures, results[0][0])
        assert futures.queued == 0
        for seq_id in (11, 12, 13):  # nothing of the limit was lost on the way
            await accept(futures, seq_id)

    asyncio.run(main())


def test_ids_may_be_skipped_and_may_come_in_any_order(store):
    async def main():
        futures = store.futures()
        order = [7, 3, 5, 2, 1, 100, 6]
        ops = [(await accept(futures, seq_id))[0] for seq_id in order]
        assert [op.position for op in ops] == sorted(op.position for op in ops)
        assert len({op.request_id for op in ops}) == len(order)

    asyncio.run(main())


def test_copies_of_a_client_count_in_blocks_of_their_own(store):
    async def main():
        futures = store.futures()
        ids = [0, 1, 5 * SEQ_BLOCK, 5 * SEQ_BLOCK + 1, 2, (10**9 - 1) * SEQ_BLOCK + 7]
        made = [(await accept(futures, seq_id, lane="sampler", kind="sample"))[1] for seq_id in ids]
        again = [(await accept(futures, seq_id, lane="sampler", kind="sample"))[1] for seq_id in ids]
        assert (made, again) == ([True] * 6, [False] * 6)

    asyncio.run(main())


def test_too_many_are_refused_until_some_are_answered(store):
    async def main():
        futures = store.futures(most_queued=2)
        first, _ = await accept(futures, 1)
        await accept(futures, 2)
        with pytest.raises(BusyError) as busy:
            await accept(futures, 3)
        assert busy.value.retry_after > 0
        assert (await accept(futures, 2))[1] is False  # what is known is not refused
        await accept(futures, 1, lane="other", owner="another")  # others have limits of their own
        await finish(futures, first)
        assert (await accept(futures, 3))[1] is True

    asyncio.run(main())


def test_too_long_ones_are_refused_but_one_may_always_wait(store):
    async def main():
        futures = store.futures(most_bytes=1000)
        big, _ = await accept(futures, 1, bytes(5000))
        with pytest.raises(BusyError, match="waiting already"):
            await accept(futures, 2, b"x")
        await finish(futures, big)
        await accept(futures, 2, bytes(600))
        with pytest.raises(BusyError):
            await accept(futures, 3, bytes(600))
        await accept(futures, 3, bytes(300))

    asyncio.run(main())


def test_a_request_that_is_refused_leaves_nothing(store):
    def refuse():
        raise InputError("path", "is bad")

    async def main():
        futures = store.futures(most_queued=1)
        with pytest.raises(InputError, match="is bad"):
            await futures.accept("run", 1, "me", "save_weights", b"", refuse)
        assert (await accept(futures, 1))[1] is True

    asyncio.run(main())


def test_a_request_that_cannot_be_stored_leaves_nothing(store):
    def fail(_):
        raise OSError(28, "No space left on device")

    async def main():
        futures = store.futures(most_queued=1)
        calls = [
            futures.accept("run", 1, "me", "create", b"", dict, also=fail),
            futures.accept("run", 1, "me", "create", b"", dict, also=fail),
        ]
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, StorageError)
        assert (await accept(futures, 1))[1] is True

    asyncio.run(main())


def test_what_was_not_answered_is_restored_in_order_with_long_bodies(store):
    long = bytes(range(256)) * (LONG_BODY // 256 + 1)

    async def before():
        futures = store.futures()
        for seq_id, body in ((3, b"short"), (1, long), (2, b"answered")):
            op, _ = await accept(futures, seq_id, body)
        await finish(futures, op)

    async def after():
        futures = store.futures(most_queued=2)
        ops = futures.restore()
        assert [(op.request_id, op.body, op.options) for op in ops] == [
            ("run:3", b"short", {"seed": 3}),
            ("run:1", long, {"seed": 3}),
        ]
        with pytest.raises(BusyError):  # they count
            await accept(futures, 4)
        answered = await futures.find("run:2")
        assert answered is not None
        assert answered.result == b"answer"
        for op in ops:
            await finish(futures, op)
        await accept(futures, 4)
        assert (await accept(futures, 1, long))[0].result == b"answer"

    asyncio.run(before())
    assert len(list(store.bodies.iterdir())) == 1
    store.restart()
    asyncio.run(after())


def test_a_request_whose_file_is_gone_fails_alone(store):
    async def before():
        futures = store.futures()
        await accept(futures, 1, bytes(LONG_BODY + 1))
        await accept(futures, 2)

    async def after():
        futures = store.futures()
        assert [op.request_id for op in futures.restore()] == ["run:2"]
        lost = await futures.find("run:1")
        assert lost is not None
        assert await futures.wait(lost, 30)
        assert (lost.status, lost.category) == ("failed", "server")
        assert futures.queued == 1

    asyncio.run(before())
    next(store.bodies.iterdir()).unlink()
    store.restart()
    asyncio.run(after())


def test_the_file_of_a_sampled_body_goes_with_its_answer(store):
    async def main():
        futures = store.futures()
        op, _ = await accept(futures, 1, bytes(LONG_BODY + 1), kind="sample")
        assert len(list(store.bodies.iterdir())) == 1
        await finish(futures, op)

    asyncio.run(main())
    assert list(store.bodies.iterdir()) == []


def test_whoever_waits_is_woken_by_the_answer(store):
    async def main():
        futures = store.futures()
        op, _ = await accept(futures, 1)
        assert await futures.wait(op, 0) is False
        waiting = [asyncio.create_task(futures.wait(op, 3600)) for _ in range(3)]
        await asyncio.sleep(0)
        futures.fail(op, "no", "user")
        assert await asyncio.wait_for(asyncio.gather(*waiting), 30) == [True] * 3
        assert (op.status, op.result, op.category) == ("failed", b"no", "user")

    asyncio.run(main())


def test_whoever_waits_is_let_go_when_the_engine_ends(store):
    async def main():
        futures = store.futures()
        op, _ = await accept(futures, 1)
        waiting = asyncio.create_task(futures.wait(op, 3600))
        await asyncio.sleep(0)
        futures.wake_all("ending")
        assert await asyncio.wait_for(waiting, 30) is False
        assert await futures.wait(op, 3600) is False

    asyncio.run(main())


def test_an_answer_is_there_only_once_it_is_stored(store):
    async def main():
        futures = store.futures()
        op, _ = await accept(futures, 1)
        futures.succeed(op, b"answer", "application/json")
        assert not op.done
        assert await futures.wait(op, 30)
        found = await store.database.read(module.journal.find_op("run:1"))
        assert found is not None
        assert (found.status, found.result) == ("done", b"answer")

    asyncio.run(main())


def test_an_answer_whose_checkpoint_cannot_be_recorded_is_a_failure(store):
    def fail(_):
        raise OSError(28, "No space left on device")

    async def main():
        futures = store.futures()
        op, _ = await accept(futures, 1, kind="save_weights")
        told: list[bool] = []
        futures.succeed(op, b"saved", "application/json", fail, told.append)
        assert await futures.wait(op, 30)
        assert (op.status, op.category, told) == ("failed", "server", [False])
        assert b"No space left" in (op.result or b"")

    asyncio.run(main())


def test_an_answer_is_withheld_until_the_disk_takes_it(store, monkeypatch):
    """Told but not stored, it would be missing from a replay."""
    finish_op, tries = module.journal.finish_op, []

    def full_twice(op):
        def work(connection):
            tries.append(op.request_id)
            if len(tries) <= 4:  # each is tried in its batch and alone, or alone
                raise OSError(28, "No space left on device")
            finish_op(op)(connection)

        return work

    monkeypatch.setattr(module.journal, "finish_op", full_twice)
    monkeypatch.setattr(module, "STORE_AGAIN_SECONDS", 0.0)

    async def main():
        futures = store.futures()
        op, _ = await accept(futures, 1)
        await finish(futures, op)
        found = await store.database.read(module.journal.find_op("run:1"))
        assert found is not None
        assert (found.status, found.result) == ("done", b"answer")

    asyncio.run(main())
    assert len(tries) == 5


def test_old_answers_leave_memory_and_are_found_all_the_same(store, monkeypatch):
    monkeypatch.setattr(module, "KEPT_BYTES", 10 * module.OP_BYTES)

    async def main():
        futures = store.futures()
        for seq_id in range(1, 31):
            await finish(futures, (await accept(futures, seq_id))[0], b"%d" % seq_id)
        assert len(futures._kept) <= 10
        for seq_id in (1, 30):
            op, made = await accept(futures, seq_id)
            assert (op.result, made) == (b"%d" % seq_id, False)

    asyncio.run(main())
