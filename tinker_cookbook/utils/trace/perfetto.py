"""A file of events, one per line, as the one JSON document that chrome://tracing and Perfetto open."""

import argparse
import json
import sys
from pathlib import Path

from tinker_cookbook.utils.atomic_file import write_text_atomically


def convert_jsonl_to_json_main() -> None:
    """The command `python -m tinker_cookbook.utils.trace`."""
    parser = argparse.ArgumentParser(
        prog="python -m tinker_cookbook.utils.trace",
        description="Turn trace_events.jsonl into a file for https://ui.perfetto.dev or chrome://tracing.",
    )
    parser.add_argument("input", type=Path, help="trace_events.jsonl, as trace_init wrote it")
    parser.add_argument("output", type=Path, help="the JSON file to write")
    options = parser.parse_args()
    try:
        text = options.input.read_text(encoding="utf-8")
    except OSError as error:
        parser.error(f"cannot read {options.input}: {error.strerror}")
    events, broken = _events_of(text)
    write_text_atomically(options.output, json.dumps({"traceEvents": events}))
    if broken:
        print(f"left out {broken} lines that are not whole events (a run was killed there)", file=sys.stderr)
    print(f"{len(events)} events in {options.output}")


def _events_of(text: str) -> tuple[list[dict[str, object]], int]:
    events: list[dict[str, object]] = []
    broken = 0
    for line in text.split("\n"):
        if not line.strip():
            continue
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if isinstance(event, dict):
            events.append(event)
        else:
            broken += 1
    return events, broken
