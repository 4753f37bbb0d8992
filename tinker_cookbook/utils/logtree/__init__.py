"""Reports of rollouts, as HTML that people read and JSON that programs read.

    with logtree.init_trace("Iteration 3", "iteration_3.html"):
        with logtree.scope_header("Problem 1"):
            logtree.log_text("What is 2 + 2?")
            logtree.log_formatter(ConversationFormatter(messages))

Where the next thing goes is kept in a context variable: functions log without being handed the report, tasks that
run at the same time keep apart, and outside a report every call does nothing.
"""

from tinker_cookbook.utils.logtree.content import (
    Formatter,
    details,
    header,
    jinja_context,
    log_formatter,
    log_html,
    log_text,
    render_with_jinja,
)
from tinker_cookbook.utils.logtree.node import Html, Node
from tinker_cookbook.utils.logtree.page import Theme, write_html_with_default_style
from tinker_cookbook.utils.logtree.tables import table, table_from_dict, table_from_dict_of_lists
from tinker_cookbook.utils.logtree.tree import (
    Trace,
    flush_trace,
    init_trace,
    optional_enable_logging,
    scope_details,
    scope_disable,
    scope_div,
    scope_header,
    scope_header_decorator,
    write_trace_json,
)

__all__ = [
    "Formatter",
    "Html",
    "Node",
    "Theme",
    "Trace",
    "details",
    "flush_trace",
    "header",
    "init_trace",
    "jinja_context",
    "log_formatter",
    "log_html",
    "log_text",
    "optional_enable_logging",
    "render_with_jinja",
    "scope_details",
    "scope_disable",
    "scope_div",
    "scope_header",
    "scope_header_decorator",
    "table",
    "table_from_dict",
    "table_from_dict_of_lists",
    "write_html_with_default_style",
    "write_trace_json",
]
