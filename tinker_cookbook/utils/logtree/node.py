"""The tree of a report: elements, text, and markup that is passed on as it is."""

import html
import re
from dataclasses import dataclass, field
from typing import Any

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.utils.jsonable import text_of, to_jsonable

_VOID_TAGS = frozenset("area base br col embed hr img input link meta source track wbr".split())
_ATTRIBUTE_NAME = re.compile(r"[A-Za-z_:][-A-Za-z0-9_:.]*")
_MAX_INDENT = 20  # deeper nesting must not cost more white space than text

# HTML has no way to write most control characters; their pictures show that they were there.
_UNWRITABLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n\r"}
_UNWRITABLE |= {0x7F: 0x2421} | dict.fromkeys(range(0xD800, 0xE000), 0xFFFD)


class Html(str):
    """Markup: written as it is, where any other string is text and is escaped.

    Template engines know `__html__` and do not escape it again.
    """

    __slots__ = ()

    def __html__(self) -> str:
        return str(self)


def escape(text: str) -> str:
    """Text as it can stand between tags and in quoted attributes; a parser reads back the same characters."""
    return html.escape(text.translate(_UNWRITABLE)).replace("\r", "&#13;")


@dataclass
class Node:
    """One element. `data`, if given, stands for the children in JSON."""

    tag: str
    attrs: dict[str, str] = field(default_factory=dict)
    children: list["Node | str"] = field(default_factory=list)
    data: dict[str, Any] | None = None

    def to_html(self, indent: int = 0) -> str:
        out: list[str] = []
        self.write_html(out, indent)
        return "".join(out)

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"tag": self.tag, "attrs": dict(self.attrs), "children": []}
        if self.data is not None:
            plain["data"] = to_jsonable(self.data)
        else:
            plain["children"] = [
                child if isinstance(child, str) else child.to_dict() for child in self.children
            ]
        return plain

    def write_html(self, out: list[str], indent: int = 0) -> None:
        """Append the markup to `out`: joining once, at the end, keeps large reports linear."""
        out.append(f"<{self.tag}{attributes_html(self.attrs)}>")
        if self.tag in _VOID_TAGS:
            return
        if self.tag in ("pre", "textarea"):
            out.append("\n")  # parsers drop a first newline, which may be the text's own
        write_children(out, self.children, indent)
        out.append(f"</{self.tag}>")


@dataclass
class Section(Node):
    """A heading and what belongs to it; readers can fold it.

    JSON keeps the plain shape, heading first; only the page has the folding element around it.
    """

    def write_html(self, out: list[str], indent: int = 0) -> None:
        heading, *body = self.children
        out.append(f"<section{attributes_html(self.attrs)}><details open><summary>")
        write_children(out, [heading], indent)
        out.append("</summary>")
        write_children(out, body, indent)
        out.append("</details></section>")


def write_children(out: list[str], children: list[Node | str], indent: int = 0) -> None:
    """Elements alone go on lines of their own; beside text, white space would be part of the text."""
    children = list(children)  # others may append while a partial page is written
    on_lines = len(children) > 1 and not any(isinstance(child, str) for child in children)
    margin = "\n" + " " * min(indent + 1, _MAX_INDENT)
    for child in children:
        if on_lines:
            out.append(margin)
        if isinstance(child, Html):
            out.append(child)
        elif isinstance(child, str):
            out.append(escape(child))
        else:
            child.write_html(out, indent + 1)


def attributes_html(attrs: dict[str, str]) -> str:
    return "".join(f' {name}="{escape(value)}"' for name, value in attrs.items())


def attributes_from_keywords(keywords: dict[str, Any]) -> dict[str, str]:
    """`class_="x", data_id=3` as HTML has them; None and False leave an attribute out, True sets an empty one."""
    attrs: dict[str, str] = {}
    for keyword, value in keywords.items():
        name = keyword.rstrip("_").replace("_", "-")
        if not _ATTRIBUTE_NAME.fullmatch(name):
            raise ConfigurationError(
                f"{keyword!r} cannot be an HTML attribute; use letters, digits and underscores"
            )
        if value is not None and value is not False:
            attrs[name] = "" if value is True else text_of(value)
    return attrs
