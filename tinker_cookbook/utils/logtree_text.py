"""Captioned text and short facts in a report."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tinker_cookbook.utils.jsonable import text_of, to_jsonable
from tinker_cookbook.utils.logtree.node import escape

_SHORT = 60  # characters of a fact that can stand in line with others

TEXT_CSS = """\
.lt-text { margin: 0; }
.lt-text figcaption { margin-bottom: .35rem; font-size: .85rem; font-weight: 600; }
.lt-text-body {
  white-space: pre-wrap; font: 13px/1.6 var(--lt-mono); padding: .5rem .75rem; background: var(--lt-card);
  border: 1px solid var(--lt-line); border-radius: 8px;
}
.lt-text-quiet figcaption { color: var(--lt-muted); font-weight: 500; }
.lt-text-quiet .lt-text-body {
  background: var(--lt-soft); border-color: transparent; border-left: 4px solid var(--lt-line);
  border-radius: 0 8px 8px 0;
}
"""

FACTS_CSS = """\
.lt-facts { display: flex; flex-wrap: wrap; gap: .3rem .45rem; font-size: .85rem; font-variant-numeric: tabular-nums; }
.lt-fact { padding: .05rem .55rem; background: var(--lt-soft); border-radius: 99px; }
.lt-fact-name { color: var(--lt-muted); margin-right: .35em; }
.lt-fact-long { flex: 1 0 100%; padding: .3rem .7rem; background: var(--lt-soft); border-radius: 6px; }
.lt-fact-long > div { white-space: pre-wrap; }
"""


@dataclass
class TextFormatter:
    """A text in a box, spaces and line ends as they are; `quiet` for what was given and not written by the model."""

    text: str
    caption: str = ""
    quiet: bool = False

    def to_html(self) -> str:
        kind = "lt-text lt-text-quiet" if self.quiet else "lt-text"
        return (
            f'<figure class="{kind}"><figcaption>{escape(self.caption)}</figcaption>'
            f'<div class="lt-text-body">{escape(self.text)}</div></figure>'
        )

    def to_data(self) -> dict[str, Any]:
        return {"type": "text", "caption": self.caption, "text": self.text}

    def get_css(self) -> str:
        return TEXT_CSS


@dataclass
class FactsFormatter:
    """Names and values: short ones in a row, long ones below."""

    facts: Mapping[str, Any]

    def to_html(self) -> str:
        texts = {text_of(name): _text(value) for name, value in self.facts.items()}
        short = [
            f'<span class="lt-fact"><span class="lt-fact-name">{escape(name)}</span>{escape(text)}</span>'
            for name, text in texts.items()
            if _is_short(text)
        ]
        long = [
            f'<div class="lt-fact-long"><span class="lt-fact-name">{escape(name)}</span><div>{escape(text)}</div></div>'
            for name, text in texts.items()
            if not _is_short(text)
        ]
        return f'<div class="lt-facts">{"".join([*short, *long])}</div>'

    def to_data(self) -> dict[str, Any]:
        return {"type": "facts", "facts": to_jsonable(self.facts)}

    def get_css(self) -> str:
        return FACTS_CSS


def _text(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else text_of(value)


def _is_short(text: str) -> bool:
    return len(text) <= _SHORT and "\n" not in text
