"""What goes into a report: text, markup, formatted objects. All of it does nothing without a report."""

import os
from typing import Any, Protocol

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.utils.atomic_file import write_text_atomically
from tinker_cookbook.utils.jsonable import text_of
from tinker_cookbook.utils.logtree.node import Html, Node
from tinker_cookbook.utils.logtree.tree import Trace, current_position, heading


class Formatter(Protocol):
    """An object that can show itself. Each `get_css` text is put into a page once; `to_data` may be left out."""

    def to_html(self) -> str: ...
    def get_css(self) -> str: ...
    def to_data(self) -> dict[str, Any] | None: ...


def add(node: Node) -> None:
    position = current_position()
    if position is not None:
        position.node.children.append(node)


def log_text(text: str, *, div_class: str | None = None) -> None:
    """A paragraph."""
    paragraph = Node("p", {"class": "lt-p"}, [text_of(text)])
    add(paragraph if div_class is None else Node("div", {"class": div_class}, [paragraph]))


def log_html(html: str, *, div_class: str | None = None) -> None:
    """Markup as it is: never text that a model or a data set wrote."""
    add(Node("div", {"class": "lt-html" if div_class is None else f"lt-html {div_class}"}, [Html(html)]))


def log_formatter(formatter: Formatter) -> None:
    """What a formatter makes of its object: its HTML, its style sheet, and its data if it has any."""
    position = current_position()
    if position is None:
        return
    position.trace.add_css(formatter.get_css())
    to_data = getattr(formatter, "to_data", None)
    data = to_data() if to_data is not None else None
    add(Node("div", {"class": "lt-formatter"}, [Html(formatter.to_html())], data))


def details(text: str, *, summary: str = "Details", pre: bool = True) -> None:
    """A text that is folded until the reader opens it."""
    body = Node("pre", {}, [text_of(text)]) if pre else Node("p", {"class": "lt-p"}, [text_of(text)])
    add(Node("details", {"class": "lt-details"}, [Node("summary", {}, [text_of(summary)]), body]))


def header(text: str, *, level: int | None = None) -> None:
    """A heading without a section, at the level of a section opened here."""
    position = current_position()
    if position is None:
        return
    if level is not None and not 1 <= level <= 6:
        raise ConfigurationError(f"headings have levels 1 to 6, not {level}")
    add(heading(text, position.depth + 2 if level is None else level))


# --- templates --------------------------------------------------------------------------------------------


def jinja_context(trace: Trace, **extra: Any) -> dict[str, Any]:
    """For one's own templates: `head` and `body` are whole elements, `content` what was logged, `trace` its data."""
    return {
        "title": trace.title,
        "started_at": trace.started_at,
        "path": trace.path,
        "head": trace.head_html(),
        "body": trace.body_html(),
        "content": trace.body_html(wrap_body=False),
        "trace": trace.to_dict(),
        **extra,
    }


def render_with_jinja(
    env: Any, template_name: str, *, context: dict[str, Any], write_to: str | os.PathLike[str] | None = None
) -> str:
    """A template of a Jinja environment with the context put in; also written to a file, if one is named."""
    text = env.get_template(template_name).render(**context)
    if write_to is not None:
        write_text_atomically(write_to, text)
    return text
