"""A strict reader of our pages: every element closed in its order; gives back structure and text."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = frozenset("area base br col embed hr img input link meta source track wbr".split())


@dataclass
class Element:
    tag: str
    attrs: dict[str, str] = field(default_factory=dict)
    children: list["Element | str"] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    @property
    def shape(self) -> tuple:
        """Tags and the names of attributes, without any text."""
        inner = tuple(child.shape for child in self.children if isinstance(child, Element))
        return (self.tag, tuple(self.attrs), inner)

    def all(self, tag: str = "", css_class: str = "") -> list["Element"]:
        found = []
        if tag in ("", self.tag) and (not css_class or css_class in self.attrs.get("class", "").split()):
            found.append(self)
        for child in self.children:
            if isinstance(child, Element):
                found += child.all(tag, css_class)
        return found


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.stack = [Element("#document")]

    def handle_starttag(self, tag, attrs):
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.stack[-1].children.append(element)
        if tag not in VOID:
            self.stack.append(element)

    def handle_startendtag(self, tag, attrs):
        self.stack[-1].children.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag):
        assert self.stack[-1].tag == tag, f"</{tag}> closes <{self.stack[-1].tag}>"
        element = self.stack.pop()
        if tag == "pre" and element.children and isinstance(element.children[0], str):
            element.children[0] = element.children[0].removeprefix("\n")  # as browsers do

    def handle_data(self, data):
        self.stack[-1].children.append(data)

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data!r}")

    def unknown_decl(self, data):
        raise AssertionError(f"a declaration: {data!r}")

    def handle_pi(self, data):
        raise AssertionError(f"an instruction: {data!r}")


def read(markup: str) -> Element:
    reader = _Reader()
    reader.feed(markup)
    reader.close()
    assert len(reader.stack) == 1, f"<{reader.stack[-1].tag}> is not closed"
    return reader.stack[0]
