"""Requests from acceptance to answer: journalled before they are acknowledged, executed once, answered often."""

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tinker_engine.core import journal
from tinker_engine.core.records import Category, Op, OpKind
from tinker_engine.errors import BusyError, InputError, StorageError
from tinker_engine.store.database import Database, Work
from tinker_engine.store.folders import write_file

log = logging.getLogger(__name__)

LONG_BODY = 64 << 10  # longer ones are files beside the database
SEQ_BLOCK = 1_000_000_000  # copies of a sampling client count from a multiple of it
KEPT_BYTES = 64 << 20  # of answers in memory; older ones are read from the database
STORE_AGAIN_SECONDS = 1.0  # after which an answer that the disk refused is tried again
OP_BYTES = 2 << 10  # of a request in memory besides its answer, about


class Futures:
    def __init__(self, database: Database, bodies: Path, *, durable: bool, most_queued: int, most_bytes: int):
        """`most_queued` requests and `most_bytes` of their bodies may wait for one owner."""
        self._database = database
        self._bodies = bodies
        self._durable = durable
        self._most_queued, self._most_bytes = most_queued, most_bytes
        self._open: dict[str, Op] = {}
        self._kept: OrderedDict[str, Op] = OrderedDict()
        self._kept_bytes = 0
        self._queued: dict[str, tuple[int, int]] = {}  # by owner: requests, bytes
        self._position = database.read_now(journal.last_position)
        self._highest: dict[tuple[str, int], int] = {}  # sequence id by lane and block: what is beyond is new
        for lane, request_id in database.read_now(journal.request_ids):
            self._seen(lane, int(request_id.rsplit(":", 1)[1]))
        self._closing: str | None = None
        self.on_answer: Callable[[str, str, float], None] = lambda kind, status, seconds: None

    def restore(self) -> list[Op]:
        """What was accepted and not answered when the engine last ended, in order."""
        ops: list[Op] = []
        for op in self._database.read_now(journal.unfinished_ops):
            self._open[op.request_id] = op
            try:
                op.body = self._body(op)
            except OSError as error:  # a damaged disk: the others must not wait for what is gone
                self._count(op, 1)
                self.fail(op, f"the request was lost with its file ({error}); send it again", "server")
                continue
            self._count(op, 1)
            ops.append(op)
        return ops

    @property
    def queued(self) -> int:
        return len(self._open)

    async def accept(
        self,
        lane: str,
        seq_id: int,
        owner: str,
        kind: OpKind,
        body: bytes,
        options: Callable[[], dict[str, Any]],
        *,
        identity: bytes | None = None,
        also: Work[None] | None = None,
    ) -> tuple[Op, bool]:
        """The op of request `seq_id` of this lane, and whether this call made it.

        `options` checks a new request and fixes what must be the same if it is executed again. A repeated one
        must have the same `identity`, by default its body. `also` is written in the same transaction.
        """
        request_id = f"{lane}:{seq_id}"
        digest = hashlib.sha256(body if identity is None else identity).hexdigest()
        known = self._open.get(request_id) or self._kept.get(request_id)
        if known is None and not self._seen(lane, seq_id):
            stored = await self._database.read(journal.find_op(request_id))
            # In the meantime the same request may have been accepted from another connection.
            known = self._open.get(request_id) or self._kept.get(request_id) or stored
        if known is not None:
            return await self._again(known, kind, digest), False
        self._refuse_if_full(owner, len(body))
        fixed = options()
        self._position += 1
        ref = f"{self._position}" if len(body) > LONG_BODY else None
        op = Op(
            request_id,
            self._position,
            lane,
            owner,
            kind,
            digest,
            body,
            ref,
            fixed,
            time.time(),
        )
        op.journalled = asyncio.get_running_loop().create_future()
        self._open[request_id] = op
        self._count(op, 1)
        try:
            await self._database.write(self._journal(op, also), short=op.body_ref is None)
        except StorageError:
            self._forget(op)
            op.journalled.cancel()
            raise
        op.journalled.set_result(None)
        op.journalled = None
        return op, True

    def succeed(
        self,
        op: Op,
        result: bytes,
        media_type: str,
        also: Work[None] | None = None,
        then: Callable[[bool], None] | None = None,
    ) -> None:
        """Answer a request. `also` is committed with the answer, or else the request fails; `then` learns which."""
        op.result, op.media_type = result, media_type
        self._settle(op, "done", also, then)

    def fail(
        self, op: Op, message: str, category: Category, then: Callable[[bool], None] | None = None
    ) -> None:
        op.result, op.category = message.encode(), category
        self._settle(op, "failed", None, then)

    async def find(self, request_id: str) -> Op | None:
        op = self._open.get(request_id) or self._kept.get(request_id)
        return op or await self._database.read(journal.find_op(request_id))

    async def wait(self, op: Op, seconds: float) -> bool:
        """Whether the answer is there, after at most so long."""
        if not op.settled.is_set() and self._closing is None:
            try:
                await asyncio.wait_for(op.settled.wait(), seconds)
            except TimeoutError:
                return False
        return op.done

    def wake_all(self, reason: str) -> None:
        """The engine is ending: whoever waits is told to ask again, for its successor knows the answer."""
        self._closing = reason
        for op in self._open.values():
            op.settled.set()

    def _seen(self, lane: str, seq_id: int) -> bool:
        """Note a sequence id; whether it lies beyond all before it, so that it must be new."""
        block = (lane, seq_id // SEQ_BLOCK)
        if seq_id <= self._highest.get(block, -1):
            return False
        self._highest[block] = seq_id
        return True

    def forget_lane(self, lane: str) -> None:
        for block in [block for block in self._highest if block[0] == lane]:
            del self._highest[block]

    async def _again(self, op: Op, kind: OpKind, digest: str) -> Op:
        if op.kind != kind or op.digest != digest:
            raise InputError(
                "seq_id",
                f"{op.request_id} was already used for another {op.kind}; every request needs its own id",
            )
        if op.journalled is not None:
            await asyncio.wait([op.journalled])
            if op.request_id not in self._open and not op.done:
                raise StorageError("the request could not be stored; send it again")
        return op

    def _journal(self, op: Op, also: Work[None] | None) -> Work[None]:
        def work(connection: Any) -> None:
            if op.body_ref is not None and op.body is not None:
                write_file(self._bodies / op.body_ref, op.body, sync=self._durable)
            journal.add_op(op)(connection)
            if also is not None:
                also(connection)

        return work

    def _settle(
        self, op: Op, status: str, also: Work[None] | None, then: Callable[[bool], None] | None
    ) -> None:
        op.finished = time.time()
        loop = asyncio.get_running_loop()
        recorded = _with_status(op, status)
        work = (
            journal.finish_op(recorded)
            if also is None
            else journal.together(also, journal.finish_op(recorded))
        )
        future = self._database.submit(work, short=True)
        future.add_done_callback(
            lambda done: loop.call_soon_threadsafe(
                self._settled, op, status, done.exception(), also is not None, then
            )
        )

    def _settled(
        self,
        op: Op,
        status: str,
        error: BaseException | None,
        needed: bool,
        then: Callable[[bool], None] | None,
    ) -> None:
        if error is not None:
            log.error("the answer to %s could not be stored: %s", op.request_id, error)
            if needed:
                op.result, op.media_type, op.category = str(error).encode(), None, "server"
                self._settle(op, "failed", None, then)
            else:  # given but not stored, it would be missing from every replay: whoever waits, waits for the disk
                again = asyncio.get_running_loop().call_later
                again(STORE_AGAIN_SECONDS, self._settle, op, status, None, then)
            return
        op.status = "done" if status == "done" else "failed"
        self._forget(op)
        self.on_answer(op.kind, op.status, time.time() - op.accepted)
        op.body = None
        if op.kind == "sample" and op.body_ref is not None:
            (self._bodies / op.body_ref).unlink(missing_ok=True)
        self._keep(op)
        op.settled.set()
        if then is not None:
            then(op.status == "done")

    def _keep(self, op: Op) -> None:
        self._kept[op.request_id] = op
        self._kept_bytes += OP_BYTES + len(op.result or b"")
        while self._kept_bytes > KEPT_BYTES and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= OP_BYTES + len(oldest.result or b"")

    def _forget(self, op: Op) -> None:
        if self._open.pop(op.request_id, None) is not None:
            self._count(op, -1)

    def _count(self, op: Op, sign: int) -> None:
        ops, size = self._queued.get(op.owner, (0, 0))
        op.size = op.size or len(op.body or b"")
        self._queued[op.owner] = ops + sign, size + sign * op.size

    def _refuse_if_full(self, owner: str, size: int) -> None:
        ops, waiting = self._queued.get(owner, (0, 0))
        if ops >= self._most_queued or (ops and waiting + size > self._most_bytes):
            raise BusyError(
                f"{ops} requests of {waiting / 1e6:.0f} MB are waiting already; send more when some are answered",
                retry_after=1.0,
            )

    def _body(self, op: Op) -> bytes:
        return (self._bodies / op.body_ref).read_bytes() if op.body_ref is not None else op.body or b""

    def body_of(self, op: Op) -> bytes:
        """Also of an op that was read back for a replay."""
        return op.body if op.body is not None else self._body(op)


def _with_status(op: Op, status: str) -> Op:
    """What goes into the database; the op itself changes only once it is committed."""
    return replace(op, status="done" if status == "done" else "failed")
