"""Where the time goes: spans, timing metrics, a chart, and an event file for Perfetto.

    with trace_iteration(step) as window:
        async with scope_span("sampling"):
            ...
    metrics |= window.get_timing_metrics()

`trace_init` also writes each span to a file; `python -m tinker_cookbook.utils.trace in.jsonl out.json` makes it one
that https://ui.perfetto.dev opens. A worker process runs its own `trace_iteration` and sends `window.spans` home, where
`merge_spans` takes them in.
"""

from tinker_cookbook.utils.trace.collector import TraceCollector
from tinker_cookbook.utils.trace.events import (
    CreateTraceEventsResult,
    EventType,
    FunctionCallContext,
    ScopeContext,
    TraceEvent,
    trace_context,
)
from tinker_cookbook.utils.trace.gantt import save_gantt_chart_html
from tinker_cookbook.utils.trace.perfetto import convert_jsonl_to_json_main
from tinker_cookbook.utils.trace.scopes import (
    get_scope_context,
    scope,
    scope_span,
    scope_span_sync,
    trace_init,
    trace_iteration,
    trace_shutdown,
    update_scope_context,
)
from tinker_cookbook.utils.trace.window import IterationWindow, SpanRecord, collect_into, current_window

__all__ = [
    "CreateTraceEventsResult",
    "EventType",
    "FunctionCallContext",
    "IterationWindow",
    "ScopeContext",
    "SpanRecord",
    "TraceCollector",
    "TraceEvent",
    "collect_into",
    "convert_jsonl_to_json_main",
    "current_window",
    "get_scope_context",
    "save_gantt_chart_html",
    "scope",
    "scope_span",
    "scope_span_sync",
    "trace_context",
    "trace_init",
    "trace_iteration",
    "trace_shutdown",
    "update_scope_context",
]
