"""What was logged elsewhere, in a worker process or before a report was begun, put into that report."""

import re
from dataclasses import dataclass, replace

from tinker_cookbook.utils.logtree.node import Node
from tinker_cookbook.utils.logtree.tree import Position, Trace, current_position

_HEADING = re.compile(r"h([1-6])")


@dataclass(frozen=True)
class Branch:
    """Can be pickled."""

    children: list[Node | str]
    css: list[str]


def take_branch(trace: Trace) -> Branch:
    return Branch(trace.root.children, trace.css)


def graft(branch: Branch) -> None:
    """At the current place, as if it had been logged here: headings go down, sections get ids of this report."""
    position = current_position()
    if position is None:
        return
    for css in branch.css:
        position.trace.add_css(css)
    position.node.children += [_moved(child, position) for child in branch.children]


def _moved(child: Node | str, position: Position) -> Node | str:
    if isinstance(child, str):
        return child
    tag, attrs = child.tag, dict(child.attrs)
    if "lt-section" in attrs.get("class", "").split():
        attrs["id"] = position.trace.next_section_id()
    if found := _HEADING.fullmatch(tag):
        tag = f"h{min(int(found[1]) + position.depth, 6)}"
        attrs["class"] = f"lt-{tag}"
    return replace(child, tag=tag, attrs=attrs, children=[_moved(part, position) for part in child.children])
