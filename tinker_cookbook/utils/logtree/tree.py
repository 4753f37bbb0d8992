"""The report that is being written: where in it this task is, and the blocks that open and close sections."""

import asyncio
import contextlib
import datetime
import functools
import inspect
import itertools
import json
import logging
import os
import threading
import traceback
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar, overload

from tinker_cookbook.utils.atomic_file import write_text_atomically
from tinker_cookbook.utils.context_vars import bound
from tinker_cookbook.utils.jsonable import text_of
from tinker_cookbook.utils.logtree import page
from tinker_cookbook.utils.logtree.node import Node, Section, attributes_from_keywords
from tinker_cookbook.utils.logtree.page import Theme

logger = logging.getLogger(__name__)
F = TypeVar("F", bound=Callable[..., Any])


class Trace:
    """One report: its tree, and the styles that its formatters need."""

    def __init__(self, title: str, path: str | os.PathLike[str] | None, write_on_error: bool):
        self.title = title
        self.path = path
        self.write_on_error = write_on_error
        self.started_at = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        self.root = Node("body", {"class": "lt-root"})
        self.key = uuid.uuid4().hex
        self._css: dict[str, None] = {}  # a set that keeps its order
        self._section_numbers = itertools.count(1)

    @property
    def css(self) -> list[str]:
        return list(self._css)

    def add_css(self, css: str) -> None:
        self._css[css] = None

    def next_section_id(self) -> str:
        return f"s{next(self._section_numbers)}"

    def body_html(self, wrap_body: bool = True) -> str:
        """The whole body with its heading and contents, or just what was logged."""
        return page.body(self.title, self.started_at, self.root) if wrap_body else page.fragment(self.root)

    def head_html(
        self, theme: Theme | None = None, title: str | None = None, extra_head: str | None = None
    ) -> str:
        return page.head(self.title if title is None else title, theme, tuple(self._css), extra_head)

    def get_html(self) -> str:
        return page.document(self.head_html(), self.body_html())

    def to_dict(self) -> dict[str, Any]:
        path = None if self.path is None else os.fspath(self.path)
        return {
            "title": self.title,
            "started_at": self.started_at,
            "path": path,
            "root": self.root.to_dict(),
        }

    def write(self) -> bool:
        """False if the report has no file."""
        if self.path is None:
            return False
        write_text_atomically(self.path, self.get_html())
        return True


# --- where this task is -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Position:
    """The node that the next thing goes into, and whose it is: an asyncio task's, else a thread's."""

    trace: Trace
    node: Node
    depth: int  # sections around it
    owner: "weakref.ref[Any]"


_position: ContextVar[Position | None] = ContextVar("logtree_position", default=None)


def current_position() -> Position | None:
    """None where nothing is to be logged.

    A task started inside a section gets, with the first thing that it logs, a place of its own there: what
    concurrent tasks log does not interleave.
    """
    position = _position.get()
    if position is None or position.owner() is _current_owner():
        return position
    place = Node("div", {"class": "lt-task"})
    position.node.children.append(place)
    own = Position(position.trace, place, position.depth, weakref.ref(_current_owner()))
    _position.set(own)  # in the context of this task, which ends with it
    return own


def _current_owner() -> "asyncio.Task[Any] | threading.Thread":
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        task = None
    return task or threading.current_thread()


@contextlib.contextmanager
def _inside(trace: Trace, node: Node, depth: int) -> Iterator[None]:
    inner = Position(trace, node, depth, weakref.ref(_current_owner()))
    with bound(_position, inner):
        try:
            yield
        except BaseException as error:
            record_error(inner, error)
            raise


def record_error(position: Position, error: BaseException) -> None:
    """Where it was raised first, and once: it passes through the sections further out as well."""
    marks = vars(error)  # not setattr: an exception may be a frozen dataclass
    if isinstance(error, GeneratorExit) or marks.get("_logtree_recorded_in") == position.trace.key:
        return
    marks["_logtree_recorded_in"] = position.trace.key
    if not isinstance(error, Exception):  # cancelled or interrupted: where is not of interest
        position.node.children.append(Node("p", {"class": "lt-p lt-error"}, [type(error).__name__]))
        return
    summary = traceback.format_exception_only(error)[-1].strip()
    text = "".join(traceback.format_exception(type(error), error, _without_own_frames(error.__traceback__)))
    children: list[Node | str] = [Node("summary", {}, [summary]), Node("pre", {}, [text])]
    position.node.children.append(Node("details", {"class": "lt-error", "open": ""}, children))


def _without_own_frames(found: TracebackType | None) -> TracebackType | None:
    """From the code that used a block on; the block's own frames come first and tell nothing."""
    while found is not None and found.tb_frame.f_code.co_filename in (__file__, contextlib.__file__):
        found = found.tb_next
    return found


# --- blocks -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def init_trace(
    title: str, path: str | os.PathLike[str] | None = None, *, write_on_error: bool = True
) -> Iterator[Trace]:
    """A report of this block; written to `path` (HTML) when it ends, and if it fails unless told otherwise."""
    trace = Trace(title, path, write_on_error)
    try:
        with _inside(trace, trace.root, 0):
            yield trace
    except BaseException:
        if write_on_error:
            _write_after_error(trace)
        raise
    trace.write()


def _write_after_error(trace: Trace) -> None:
    try:
        trace.write()
    except OSError as error:  # the error that ended the block is the one to raise
        logger.warning("the report %r could not be written to %s: %s", trace.title, trace.path, error)


def flush_trace() -> bool:
    """Write the page as it is now; False if there is no report, or none with a file."""
    position = _position.get()
    return position is not None and position.trace.write()


def write_trace_json(trace: Trace, path: str | os.PathLike[str]) -> None:
    """The report as data."""
    write_text_atomically(path, json.dumps(trace.to_dict(), indent=2))


@contextlib.contextmanager
def scope_header(title: str, **attrs: Any) -> Iterator[None]:
    """A section, a level below the one around it; `attrs` go to its element (`class_="x"`)."""
    position = current_position()
    if position is None:
        yield
        return
    given = attributes_from_keywords(attrs)
    classes = " ".join(filter(None, ["lt-section", given.pop("class", "")]))
    section = Section("section", {"class": classes, "id": position.trace.next_section_id()} | given)
    section.children.append(heading(title, position.depth + 2))
    position.node.children.append(section)
    with _inside(position.trace, section, position.depth + 1):
        yield


def heading(text: str, level: int) -> Node:
    level = min(level, 6)
    return Node(f"h{level}", {"class": f"lt-h{level}"}, [text_of(text)])


@overload
def scope_header_decorator(title: F) -> F: ...
@overload
def scope_header_decorator(title: str) -> Callable[[F], F]: ...
def scope_header_decorator(title: str | F) -> F | Callable[[F], F]:
    """`@scope_header_decorator` takes the function's name as the title, `@scope_header_decorator("...")` yours."""
    if not isinstance(title, str):
        return _with_header(title, title.__name__)
    return functools.partial(_with_header, title=title)


def _with_header(function: F, title: str) -> F:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with scope_header(title):
            return function(*args, **kwargs)

    @functools.wraps(function)
    async def async_wrapper(*args: Any, **kwargs: Any) -> Any:
        with scope_header(title):
            return await function(*args, **kwargs)

    return async_wrapper if inspect.iscoroutinefunction(function) else wrapper  # pyright: ignore[reportReturnType]


@contextlib.contextmanager
def scope_div(**attrs: Any) -> Iterator[None]:
    """Everything inside goes into one `div` with these attributes."""
    position = current_position()
    if position is None:
        yield
        return
    node = Node("div", attributes_from_keywords(attrs))
    position.node.children.append(node)
    with _inside(position.trace, node, position.depth):
        yield


@contextlib.contextmanager
def scope_details(summary: str) -> Iterator[None]:
    """Folded until the reader opens it."""
    position = current_position()
    if position is None:
        yield
        return
    node = Node("details", {"class": "lt-details"}, [Node("summary", {}, [text_of(summary)])])
    position.node.children.append(node)
    with _inside(position.trace, node, position.depth):
        yield


@contextlib.contextmanager
def scope_disable() -> Iterator[None]:
    """Log nothing in this block, unless it starts a report of its own."""
    with bound(_position, None):
        yield


@contextlib.contextmanager
def optional_enable_logging(enable: bool) -> Iterator[None]:
    """Without `enable`, nothing inside is reported."""
    with contextlib.nullcontext() if enable else scope_disable():
        yield
