"""Trace events as Chrome and Perfetto read them, and the tracks that they are shown on."""

import asyncio
import itertools
import threading
import weakref
import zlib
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tinker_cookbook.utils.jsonable import to_jsonable


class EventType(StrEnum):
    """Kinds of events of the Chrome trace format."""

    BEGIN = "B"
    END = "E"
    METADATA = "M"


@dataclass
class TraceEvent:
    """`pid` stands for a thread, `tid` for a task in it, `ts` counts microseconds."""

    name: str
    ph: EventType
    pid: int
    tid: int
    ts: float
    args: dict[str, Any] = field(default_factory=dict)
    cat: str | None = None

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = {
            "name": self.name,
            "ph": self.ph.value,
            "pid": self.pid,
            "tid": self.tid,
            "ts": self.ts,
            "args": to_jsonable(self.args),
        }
        return plain if self.cat is None else {**plain, "cat": self.cat}


@dataclass
class ScopeContext:
    """What the running scope wants to have noted with its end."""

    attributes: dict[str, Any] = field(default_factory=dict)


trace_context: ContextVar[ScopeContext | None] = ContextVar("trace_context", default=None)


@dataclass
class FunctionCallContext:
    """A call that has begun: what its end event needs."""

    scope_context: ScopeContext
    coroutine_name: str
    thread_name: str
    category: str
    thread_id: int
    track_id: int = 0

    def end_event(self, name: str, ts: float) -> TraceEvent:
        noted = to_jsonable(
            self.scope_context.attributes
        )  # now: the values may change before they are written
        args = {"track": self.coroutine_name, "thread": self.thread_name, **noted}
        return TraceEvent(name, EventType.END, self.thread_id, self.track_id, ts, args, self.category)


@dataclass
class CreateTraceEventsResult:
    """The events that begin a span, and what is needed to end it."""

    begin_event: TraceEvent
    metadata_coroutine_event: TraceEvent
    metadata_thread_event: TraceEvent
    function_call_context: FunctionCallContext


class Tracks:
    """A number for each thread, and for each task a track that no other running task has.

    Tracks are named after their tasks, and their numbers follow from the names: the same in each run. Tasks of one
    name that run at the same time get `name`, `name (2)`, ...; one that ended makes room for the next.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._thread_numbers = itertools.count(1)
        self._threads: weakref.WeakKeyDictionary[threading.Thread, int] = weakref.WeakKeyDictionary()
        self._tracks: weakref.WeakKeyDictionary[asyncio.Task[Any] | threading.Thread, str] = (
            weakref.WeakKeyDictionary()
        )
        self._owners: dict[str, weakref.ref[asyncio.Task[Any] | threading.Thread]] = {}

    def begin(self, name: str, ts: float, context: ScopeContext) -> CreateTraceEventsResult:
        thread = threading.current_thread()
        with self._lock:
            pid = self._threads.get(thread)
            if pid is None:
                pid = self._threads[thread] = next(self._thread_numbers)
            track = self._track_of(_current_task() or thread)
        tid = zlib.crc32(track.encode()) & 0x7FFFFFFF
        args = {"track": track, "thread": thread.name}
        call = FunctionCallContext(context, track, thread.name, "async", pid, tid)
        return CreateTraceEventsResult(
            TraceEvent(name, EventType.BEGIN, pid, tid, ts, args, call.category),
            TraceEvent("thread_name", EventType.METADATA, pid, tid, 0, {"name": track}),
            TraceEvent("process_name", EventType.METADATA, pid, 0, 0, {"name": thread.name}),
            call,
        )

    def _track_of(self, owner: "asyncio.Task[Any] | threading.Thread") -> str:
        track = self._tracks.get(owner)
        if track is None:
            name = owner.get_name() if isinstance(owner, asyncio.Task) else owner.name
            numbered = (f"{name} ({number})" for number in itertools.count(2))
            track = next(track for track in itertools.chain([name], numbered) if self._is_free(track))
            self._tracks[owner] = track
            self._owners[track] = weakref.ref(owner)
        return track

    def _is_free(self, track: str) -> bool:
        owner = self._owners[track]() if track in self._owners else None
        return owner is None or (owner.done() if isinstance(owner, asyncio.Task) else not owner.is_alive())


def _current_task() -> "asyncio.Task[Any] | None":
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        return None
