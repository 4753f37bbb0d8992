import asyncio
import json
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.tinker_cookbook.utils.markup import read
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.utils import trace
from tinker_cookbook.utils.trace import IterationWindow, SpanRecord, TraceCollector, scopes
from tinker_cookbook.utils.trace.gantt import lanes_of

ROOT = Path(__file__).resolve().parents[3]


def events_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line]


@pytest.fixture
def collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TraceCollector:
    """One that writes only when it is shut down; the SDK is left alone."""
    collector = TraceCollector(flush_interval_sec=1000, output_file=str(tmp_path / "events.jsonl"))
    monkeypatch.setattr(scopes, "_collector", collector)
    return collector


def finished(collector: TraceCollector, tmp_path: Path) -> list[dict[str, Any]]:
    collector.shutdown()
    return events_of(tmp_path / "events.jsonl")


# --- windows ----------------------------------------------------------------------------------------------


def test_one_span_is_a_time_and_several_are_summed_up():
    window = IterationWindow()
    window.record_span("once", 10.0, 12.0)
    for end in (1.0, 2.0, 6.0):
        window.record_span("often", 0.0, end)
    expected = {
        "time/once": 2.0,
        "time/often:total": 9.0,
        "time/often:count": 3.0,
        "time/often:mean": 3.0,
        "time/often:max": 6.0,
    }
    assert window.aggregate() == expected
    assert window.get_timing_metrics() == expected


def test_scopes_record_spans_and_results_also_when_they_fail():
    @trace.scope
    def plain(x: int) -> int:
        return x + 1

    @trace.scope
    async def coroutine() -> None:
        async with trace.scope_span("inner"):
            raise ValueError("wrong")

    assert plain(1) == 2  # outside of an iteration too
    with trace.trace_iteration(3) as window:
        assert plain(1) == 2
        with trace.scope_span_sync("block"):
            pass
        with pytest.raises(ValueError, match="wrong"):
            asyncio.run(coroutine())
        assert "time/total" not in window.get_timing_metrics()
    assert set(window.get_timing_metrics()) == {
        f"time/{n}" for n in ("plain", "block", "inner", "coroutine", "total")
    }
    assert all(value >= 0 for value in window.get_timing_metrics().values())


def test_the_inner_iteration_collects():
    with trace.trace_iteration(0) as outer:
        with trace.scope_span_sync("before"):
            pass
        with trace.trace_iteration(1) as inner, trace.scope_span_sync("within"):
            assert trace.current_window() is inner
        with trace.scope_span_sync("after"):
            pass
    assert trace.current_window() is None
    assert [span.name for span in outer.spans] == ["before", "after"]
    assert [span.name for span in inner.spans] == ["within"]


def test_a_failed_iteration_has_its_total():
    with pytest.raises(ValueError, match="x"), trace.trace_iteration(0) as window:
        raise ValueError("x")
    assert window.total_time is not None


def test_a_step_in_several_blocks_collects_into_one_window():
    window = IterationWindow()
    for name in ("submit", "finish"):
        with trace.collect_into(window), trace.scope_span_sync(name):
            pass
    assert [span.name for span in window.spans] == ["submit", "finish"]


def test_tasks_and_threads_record_into_the_window_around_them():
    async def run() -> None:
        async with trace.scope_span("main"):
            await asyncio.gather(asyncio.to_thread(in_thread), in_task(), in_task())

    @trace.scope
    def in_thread() -> None: ...

    @trace.scope
    async def in_task() -> None: ...

    with trace.trace_iteration(0) as window:
        asyncio.run(run())
    assert sorted(span.name for span in window.spans) == ["in_task", "in_task", "in_thread", "main"]


def test_spans_of_a_worker_keep_their_place_and_length():
    now = time.time()
    worker = SpanRecord("rollout", 9e9, 9e9 + 2.5, now + 1, now + 3.5)  # its clock is not ours
    with trace.trace_iteration(0) as window:
        with trace.scope_span_sync("here"):
            pass
        window.merge_spans(pickle.loads(pickle.dumps([worker])))
    here, merged = window.spans
    assert merged.duration == pytest.approx(2.5)
    assert merged.start_time - here.start_time == pytest.approx(1, abs=0.5)
    assert window.get_timing_metrics()["time/rollout"] == pytest.approx(2.5)
    rows = window.get_span_records()
    assert [row["name"] for row in rows] == ["here", "rollout"]
    assert rows[1]["wall_start"] == pytest.approx(1, abs=0.5)


def test_rows_count_from_the_first_span(tmp_path: Path):
    window = IterationWindow()
    window.record_span("second", 101.0, 102.0)
    window.record_span("first", 100.0, 103.0)
    path = tmp_path / "new" / "timing_spans.jsonl"
    window.write_spans_jsonl(path, 4)
    IterationWindow().write_spans_jsonl(path, 5)
    window.write_spans_jsonl(path, 6)
    four, six = events_of(path)
    assert (four["step"], six["step"]) == (4, 6)
    assert [row["name"] for row in four["spans"]] == ["first", "second"]
    assert list(four["spans"][0]) == ["name", "duration", "wall_start", "wall_end"]
    assert [four["spans"][1][key] for key in ("duration", "wall_start", "wall_end")] == pytest.approx(
        [1, 1, 2]
    )
    assert window.get_span_dicts() == four["spans"]


def test_a_store_gets_the_rows():
    class Store:
        def __init__(self):
            self.rows: list[Any] = []

        def write_timing_spans(self, step: int, spans: list[dict[str, Any]]) -> None:
            self.rows.append((step, spans))

    store = Store()
    window = IterationWindow()
    window.record_span("a", 0.0, 1.0)
    window.save_timing(7, store=store)  # pyright: ignore[reportArgumentType]
    window.save_timing(7, store=None)
    assert store.rows == [(7, window.get_span_dicts())]


# --- events -----------------------------------------------------------------------------------------------


def test_events_have_the_shape_that_perfetto_reads(collector: TraceCollector, tmp_path: Path):
    @trace.scope
    async def work() -> None:
        trace.update_scope_context({"reward": 0.5, "bad": float("nan"), "path": Path("x")})
        trace.get_scope_context().attributes["more"] = 1

    async def run() -> None:
        await asyncio.create_task(work(), name="rollout-1")

    asyncio.run(run())
    events = finished(collector, tmp_path)
    assert [event["ph"] for event in events] == ["M", "M", "B", "E"]
    begin, end = events[2:]
    assert begin["name"] == end["name"] == "work"
    assert begin["cat"] == "async"
    assert begin["args"] == {"track": "rollout-1", "thread": threading.current_thread().name}
    assert end["args"] == {**begin["args"], "reward": 0.5, "bad": "NaN", "path": "x", "more": 1}
    assert (begin["pid"], begin["tid"]) == (end["pid"], end["tid"])
    assert begin["ts"] <= end["ts"]
    assert abs(begin["ts"] / 1e6 - time.time()) < 3600  # microseconds since 1970
    assert {event["name"]: event["args"]["name"] for event in events[:2]} == {
        "process_name": threading.current_thread().name,
        "thread_name": "rollout-1",
    }


def test_running_tasks_of_one_name_have_tracks_of_their_own(collector: TraceCollector, tmp_path: Path):
    async def run() -> None:
        turn = asyncio.Barrier(2)

        async def work() -> None:
            with trace.scope_span_sync("outer"):
                await turn.wait()
                with trace.scope_span_sync("inner"):
                    await turn.wait()

        for _ in range(2):
            await asyncio.gather(*(asyncio.create_task(work(), name="rollout") for _ in range(2)))

    asyncio.run(run())
    events = finished(collector, tmp_path)
    tracks: dict[str, list[str]] = {}
    for event in events:
        if event["ph"] != "M":
            tracks.setdefault(event["args"]["track"], []).append(event["ph"] + event["name"])
    assert tracks == dict.fromkeys(["rollout", "rollout (2)"], ["Bouter", "Binner", "Einner", "Eouter"] * 2)
    described = [(event["name"], event["pid"], event["tid"]) for event in events if event["ph"] == "M"]
    assert len(described) == len(set(described)) == 3  # one thread, two tracks


def test_track_numbers_do_not_change_between_processes():
    script = (
        "import threading; from tinker_cookbook.utils.trace.events import *\n"
        "threading.current_thread().name = 'rollouts'\n"
        "print(Tracks().begin('x', 0, ScopeContext()).begin_event.tid)"
    )
    numbers = {run_python(script, PYTHONHASHSEED=seed) for seed in ("1", "2")}
    assert len(numbers) == 1


def run_python(script: str, **environment: str) -> str:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_nothing_is_lost_when_the_interpreter_ends(tmp_path: Path):
    script = """
import sys, types
client = type("Client", (), {})
sys.modules["tinker"] = types.SimpleNamespace(TrainingClient=client, SamplingClient=client)  # quick to import
from tinker_cookbook.utils import trace
trace.trace_init(flush_interval_sec=1000, output_file=PATH)
for k in range(5000):
    with trace.scope_span_sync(f"span {k}"):
        pass
sys.exit(0)
"""
    path = tmp_path / "events.jsonl"
    run_python(script.replace("PATH", repr(str(path))))
    assert sum(event["ph"] == "E" for event in events_of(path)) == 5000


def test_the_flusher_writes_by_itself(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    collector = TraceCollector(flush_interval_sec=0.001, output_file=str(path))
    collector.add_event(trace.TraceEvent("x", trace.EventType.BEGIN, 1, 1, 0.0))
    deadline = time.monotonic() + 60
    while not path.read_text() and time.monotonic() < deadline:
        threading.Event().wait(0.001)
    assert [event["name"] for event in events_of(path)] == ["x"]
    collector.shutdown()


def test_queued_events_can_be_taken(collector: TraceCollector, tmp_path: Path):
    with trace.scope_span_sync("a"):
        pass
    taken = collector.get_all_events_immediately_available()
    assert [event.ph for event in taken] == ["M", "M", "B", "E"]
    assert collector.get_all_events_immediately_available() == []
    assert finished(collector, tmp_path) == []


def test_a_failed_write_is_reported_and_tried_again(
    collector: TraceCollector,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    written = collector._write

    def half_a_line(text: str) -> None:
        written(text[:10])
        raise OSError("disk full")

    with trace.scope_span_sync("a"):
        pass
    monkeypatch.setattr(collector, "_write", half_a_line)
    collector._flush()
    assert "disk full" in caplog.text
    monkeypatch.setattr(collector, "_write", written)
    with trace.scope_span_sync("b"):
        pass
    collector.shutdown()
    torn, *lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert len(torn) == 10
    assert [json.loads(line)["name"] for line in lines][2:] == ["a", "a", "b", "b"]


def test_events_that_could_never_be_written_are_counted(
    collector: TraceCollector, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    def fails(text: str) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(collector, "_write", fails)
    with trace.scope_span_sync("a"):
        pass
    with caplog.at_level(logging.ERROR):
        collector.shutdown()
    assert "4 trace events were not written" in caplog.text


def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path: Path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(OSError, match="file"):
        TraceCollector(output_file=str(tmp_path / "file" / "events.jsonl"))
    with pytest.raises(ConfigurationError, match="flush_interval_sec"):
        TraceCollector(0, str(tmp_path / "events.jsonl"))


def test_scope_context_outside_of_scopes_is_empty():
    trace.update_scope_context({"a": 1})
    assert trace.get_scope_context().attributes == {}
    with trace.scope_span_sync("outer"):
        trace.update_scope_context({"a": 1})
        with trace.scope_span_sync("inner"):
            assert trace.get_scope_context().attributes == {}
        assert trace.get_scope_context().attributes == {"a": 1}


def test_conversion_for_perfetto(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    source, target = tmp_path / "in.jsonl", tmp_path / "new" / "out.json"
    source.write_text('{"name": "a"}\n{"na\n\n{"name": "b"}\n')
    monkeypatch.setattr(sys, "argv", ["trace", str(source), str(target)])
    trace.convert_jsonl_to_json_main()
    assert json.loads(target.read_text()) == {"traceEvents": [{"name": "a"}, {"name": "b"}]}
    assert "left out 1 lines" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["trace", str(tmp_path / "none"), str(target)])
    with pytest.raises(SystemExit):
        trace.convert_jsonl_to_json_main()
    assert "cannot read" in capsys.readouterr().err


# --- the chart --------------------------------------------------------------------------------------------


def test_chart(tmp_path: Path):
    window = IterationWindow()
    window.record_span("train", 10.0, 14.0)
    window.record_span("rollout", 4.0, 9.0)
    window.record_span("rollout", 5.0, 8.0)
    window.total_time = 10.5
    trace.save_gantt_chart_html(window, 7, str(tmp_path / "new" / "chart.html"))
    page = read((tmp_path / "new" / "chart.html").read_text())
    assert page.all("h1")[0].text == "Step 7: where the time went"
    labels = [label.text for label in page.all("div", "gantt-label")]
    assert labels == ["", "rollout2 ×, mean 4 s, max 5 s", "train4 s"]
    tips = [rect.all("title")[0].text for rect in page.all("rect")]
    assert tips[0] == "rollout\n5 s\nfrom 0 s to 5 s"
    first, second, third = page.all("rect")
    assert (first.attrs["x"], first.attrs["width"]) == ("0.0000%", "50.0000%")
    assert (third.attrs["x"], third.attrs["width"]) == ("60.0000%", "40.0000%")
    assert first.attrs["y"] != second.attrs["y"]
    assert [text.text for text in page.all("text")] == ["0 s", "2 s", "4 s", "6 s", "8 s", "10 s"]


def test_a_chart_of_nothing_and_of_an_instant(tmp_path: Path):
    trace.save_gantt_chart_html(IterationWindow(), 0, tmp_path / "none.html")
    assert "No spans were recorded" in read((tmp_path / "none.html").read_text()).text
    window = IterationWindow()
    window.record_span("instant", 1.0, 1.0)
    trace.save_gantt_chart_html(window, 0, tmp_path / "instant.html")
    assert len(read((tmp_path / "instant.html").read_text()).all("rect")) == 1


def test_lanes_are_used_again():
    times = [(0, 4), (1, 2), (1, 3), (2, 5), (4, 6)]
    assert lanes_of([SpanRecord("x", a, b, a, b) for a, b in times]) == [0, 1, 2, 1, 0]
