"""Whole pages: the head with its styles, the table of contents, the file."""

import itertools
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tinker_cookbook.utils.atomic_file import write_text_atomically
from tinker_cookbook.utils.logtree.node import Html, Node, Section, escape, write_children
from tinker_cookbook.utils.logtree.style import DEFAULT_CSS, PAGE_SCRIPT

_CONTENTS_DEPTH = 3
_CONTENTS_MIN, _CONTENTS_MAX = 3, 300  # shorter ones are in view anyway, longer ones are not read


@dataclass
class Theme:
    """`css_text` takes the place of the built-in style; `css_vars` (`{"lt-bg": "#fff"}`) change it."""

    css_text: str | None = None
    css_urls: list[str] = field(default_factory=list)
    css_vars: dict[str, str] = field(default_factory=dict)


def head(title: str, theme: Theme | None, extra_css: Iterable[str], extra_head: str | None) -> Html:
    theme = theme or Theme()
    style = [DEFAULT_CSS if theme.css_text is None else theme.css_text, *extra_css]
    if theme.css_vars:
        rules = "".join(f" --{name.removeprefix('--')}: {value};" for name, value in theme.css_vars.items())
        style.append(f":root {{{rules} }}")
    lines = [
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>",
        *(f'<link rel="stylesheet" href="{escape(url)}">' for url in theme.css_urls),
        f"<style>\n{_css_for_style_element(style)}\n</style>",
    ]
    if extra_head:
        lines.append(extra_head)
    return Html("\n".join([*lines, "</head>"]))


def _css_for_style_element(parts: Iterable[str]) -> str:
    """The element ends at the first `</style`, even within a string; `<\\/` means the same to CSS."""
    return re.sub(r"</(?=style)", r"<\\/", "\n".join(parts), flags=re.IGNORECASE)


def body(title: str, started_at: str, root: Node) -> Html:
    out = [
        f'<body class="{escape(root.attrs.get("class", ""))}">\n<header class="lt-top">',
        f'<h1>{escape(title)}</h1><span class="lt-when">{escape(started_at)}</span></header>\n',
        _table_of_contents(root),
    ]
    Node("main", {}, root.children).write_html(out)
    out.append(f"\n<script>\n{PAGE_SCRIPT}</script>\n</body>")
    return Html("".join(out))


def fragment(root: Node) -> Html:
    out: list[str] = []
    write_children(out, root.children)
    return Html("".join(out))


def _table_of_contents(root: Node) -> str:
    entries = list(itertools.islice(_outline(root), _CONTENTS_MAX))
    if len(entries) < _CONTENTS_MIN:
        return ""
    items = "".join(
        f'<li style="margin-left: {depth}em"><a href="#{escape(section.attrs["id"])}">{_title(section)}</a></li>'
        for depth, section in entries
    )
    return f'<details class="lt-toc"><summary>Contents</summary><ul>{items}</ul></details>\n'


def _outline(node: Node, depth: int = 0) -> Iterator[tuple[int, Section]]:
    for child in list(node.children):
        if isinstance(child, Section):
            yield depth, child
            if depth + 1 < _CONTENTS_DEPTH:
                yield from _outline(child, depth + 1)
        elif isinstance(child, Node) and child.tag == "div":
            yield from _outline(child, depth)


def _title(section: Section) -> str:
    out: list[str] = []
    heading = section.children[0]
    write_children(out, [heading] if isinstance(heading, str) else heading.children)
    return "".join(out)


def document(head_html: str, body_html: str, lang: str = "en") -> str:
    return f'<!doctype html>\n<html lang="{escape(lang)}">\n{head_html}\n{body_html}\n</html>\n'


def write_html_with_default_style(
    body_html: str,
    path: str | os.PathLike[str],
    *,
    title: str = "Trace",
    theme: Theme | None = None,
    lang: str = "en",
    extra_head: str | None = None,
) -> None:
    """A page around markup, with its `<body>` tag or without."""
    if body_html.lstrip()[:5].lower() != "<body":
        body_html = f"<body>\n{body_html}\n</body>"
    write_text_atomically(path, document(head(title, theme, (), extra_head), body_html, lang))
