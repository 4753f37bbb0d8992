"""Events on their way to a file: queued at once by whoever has one, written by a thread in the background."""

import json
import logging
import queue
import threading
import time
from pathlib import Path

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.utils.trace.events import (
    FunctionCallContext,
    ScopeContext,
    TraceEvent,
    Tracks,
)

logger = logging.getLogger(__name__)

_MAX_UNWRITTEN = 1_000_000  # events kept for another try while the file cannot be written
_LAST_WRITE_SECONDS = 30.0


class TraceCollector:
    """Appends to `output_file` every `flush_interval_sec` and once more when it is shut down."""

    def __init__(self, flush_interval_sec: float = 1.0, output_file: str = "trace_events.jsonl"):
        if not flush_interval_sec > 0:
            raise ConfigurationError(f"flush_interval_sec is above 0, not {flush_interval_sec}")
        self._interval = flush_interval_sec
        self._path = Path(output_file)
        self._write("")  # a file that cannot be written is known now, not at the end of the run
        self._queue: queue.SimpleQueue[TraceEvent] = queue.SimpleQueue()
        self._tracks = Tracks()
        self._described: set[tuple[str, int, int]] = set()
        self._clock_offset = time.time() - time.perf_counter()
        self._unwritten: list[TraceEvent] = []
        self._lost = 0
        self._failing = False
        self._stop = threading.Event()
        self._writing = threading.Lock()
        self._flusher = threading.Thread(target=self._flush_until_stopped, name="trace-flusher", daemon=True)
        self._flusher.start()  # last: it uses all of the above

    def add_event(self, event: TraceEvent) -> None:
        self._queue.put(event)

    def get_timestamp(self) -> float:
        """Microseconds since 1970, by a clock that never goes back."""
        return (time.perf_counter() + self._clock_offset) * 1e6

    def begin(self, name: str, context: ScopeContext) -> FunctionCallContext:
        events = self._tracks.begin(name, self.get_timestamp(), context)
        for event in (events.metadata_thread_event, events.metadata_coroutine_event):
            self._describe(event)
        self.add_event(events.begin_event)
        return events.function_call_context

    def end(self, name: str, call: FunctionCallContext) -> None:
        self.add_event(call.end_event(name, self.get_timestamp()))

    def _describe(self, event: TraceEvent) -> None:
        """Each thread and each track is named once."""
        key = (event.name, event.pid, event.tid)
        if key not in self._described:
            self._described.add(key)
            self.add_event(event)

    def get_all_events_immediately_available(self) -> list[TraceEvent]:
        """Take what is queued; it will not be written."""
        events: list[TraceEvent] = []
        while True:
            try:
                events.append(self._queue.get_nowait())
            except queue.Empty:
                return events

    def shutdown(self) -> None:
        """Write what is left. Later events stay in memory."""
        self._stop.set()
        self._flusher.join(_LAST_WRITE_SECONDS)
        if self._flusher.is_alive():
            logger.error("%s is not written to the end: its disk did not answer", self._path)
            return
        self._flush()
        missing = self._lost + len(self._unwritten)
        if missing:
            logger.error("%d trace events were not written to %s", missing, self._path)

    def _flush_until_stopped(self) -> None:
        while not self._stop.wait(self._interval):
            self._flush()

    def _flush(self) -> None:
        with self._writing:
            events = self._unwritten + self.get_all_events_immediately_available()
            self._unwritten = []
            if not events:
                return
            try:
                self._append(events)
            except OSError as error:
                self._keep_for_next_time(events, error)
            else:
                self._failing = False

    def _append(self, events: list[TraceEvent]) -> None:
        lines = "".join(json.dumps(event.to_dict()) + "\n" for event in events)
        # A write that failed may have left half a line, which must not spoil the next one.
        self._write("\n" + lines if self._failing else lines)

    def _write(self, text: str) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(text)

    def _keep_for_next_time(self, events: list[TraceEvent], error: OSError) -> None:
        if not self._failing:
            logger.warning("trace events cannot be written to %s, trying again: %s", self._path, error)
        self._failing = True
        self._unwritten = events[-_MAX_UNWRITTEN:]
        self._lost += len(events) - len(self._unwritten)
