"""Tokens coloured by a number each: advantages, weights, log-probabilities."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.utils.logtree.node import escape

_SHADES = 10  # a class each, which is much shorter in the page than a colour for every token


def _shade_rules() -> str:
    return "\n".join(
        f".lt-tok.{sign}{shade} {{ background: rgba(var(--lt-{name}), {0.62 * shade / _SHADES:.3g}); }}"
        for sign, name in (("p", "plus"), ("m", "minus"))
        for shade in range(1, _SHADES + 1)
    )


TOKENS_CSS = f"""\
.lt-tokens figcaption {{
  display: flex; flex-wrap: wrap; gap: .2rem 1rem; align-items: center; margin-bottom: .35rem; font-size: .85rem;
}}
.lt-tokens {{ margin: 0; }}
.lt-tokens-caption {{ font-weight: 600; }}
.lt-tokens-scale {{ display: inline-flex; gap: .5em; align-items: center; color: var(--lt-muted); }}
.lt-tokens-bar {{
  width: 7em; height: .8em; border-radius: 3px; border: 1px solid var(--lt-line);
  background: linear-gradient(to right, rgba(var(--lt-minus), .62), transparent, rgba(var(--lt-plus), .62));
}}
.lt-tokens-text {{
  white-space: pre-wrap; font: 13px/1.75 var(--lt-mono); padding: .5rem .75rem; background: var(--lt-card);
  border: 1px solid var(--lt-line); border-radius: 8px;
}}
.lt-tok {{ position: relative; border-radius: 2px; padding: .1em 0; outline: none; cursor: default; }}
.lt-tok:hover, .lt-tok:focus {{ box-shadow: 0 0 0 1.5px var(--lt-fg); z-index: 3; }}
.lt-tok:hover::after, .lt-tok:focus::after {{
  content: attr(data-tip); position: absolute; left: 0; top: 100%; z-index: 4; width: max-content; max-width: 14rem;
  padding: .3rem .55rem; margin-top: 3px; color: var(--lt-bg); background: var(--lt-fg); border-radius: 5px;
  font: 12px/1.4 var(--lt-font); white-space: pre-wrap; pointer-events: none;
}}
@media (max-width: 40rem) {{
  .lt-tok {{ position: static; }}
  .lt-tok:hover::after, .lt-tok:focus::after {{
    position: fixed; left: .7rem; right: .7rem; top: auto; bottom: .7rem; width: auto; max-width: none;
  }}
}}
.lt-nl::before {{ content: "\\21b5"; opacity: .45; }}
.lt-tok.none::before {{ content: "\\2205"; opacity: .45; }}
.lt-tok.nan {{ text-decoration: underline wavy var(--lt-error); }}
.lt-tok.off {{ opacity: .6; }}
{_shade_rules()}
"""


class Decoder(Protocol):
    def decode(self, token_ids: list[int], /) -> str: ...


@dataclass
class TokensFormatter:
    """Tokens on a ground that tells their value: blue above zero, orange below, none at zero.

    Pointing at a token, or tapping it, shows its place, id, text and value. A value of None marks a token that has
    none (a prompt's, say). `limit` is the value of the full colour; without it, the largest there is. `tips` are shown
    in place of the usual ones.
    """

    tokens: Sequence[str]
    values: Sequence[float | None]
    caption: str = ""
    token_ids: Sequence[int] | None = None
    label: str = "value"
    limit: float | None = None
    tips: Sequence[str] | None = None

    def __post_init__(self) -> None:
        counts = {"tokens": len(self.tokens), "values": len(self.values)}
        if self.token_ids is not None:
            counts["token_ids"] = len(self.token_ids)
        if self.tips is not None:
            counts["tips"] = len(self.tips)
        if len(set(counts.values())) > 1:
            raise ConfigurationError(f"one value, id and tip per token are needed; there are {counts}")
        if self.limit is not None and not self.limit > 0:
            raise ConfigurationError(f"limit is the value of the full colour and above 0, not {self.limit}")

    @classmethod
    def from_ids(
        cls, token_ids: Sequence[int], values: Sequence[float | None], tokenizer: Decoder, **fields: Any
    ) -> "TokensFormatter":
        """Each token decoded alone: half a character shows as a replacement mark."""
        ids = [int(token) for token in token_ids]
        return cls([tokenizer.decode([token]) for token in ids], values, token_ids=ids, **fields)

    def to_html(self) -> str:
        limit = self._full_colour()
        spans = "".join(self._token_html(index, limit) for index in range(len(self.tokens)))
        text = f'<div class="lt-tokens-text">{spans}</div>'
        return f'<figure class="lt-tokens">{self._caption_html(limit)}{text}</figure>'

    def to_data(self) -> dict[str, Any]:
        return {
            "type": "tokens",
            "caption": self.caption,
            "label": self.label,
            "tokens": list(self.tokens),
            "values": list(self.values),
            "token_ids": None if self.token_ids is None else list(self.token_ids),
        }

    def get_css(self) -> str:
        return TOKENS_CSS

    def _full_colour(self) -> float:
        if self.limit is not None:
            return self.limit
        sizes = (abs(value) for value in self.values if value is not None and math.isfinite(value))
        return max(sizes, default=0.0) or 1.0

    def _caption_html(self, limit: float) -> str:
        return (
            f'<figcaption><span class="lt-tokens-caption">{escape(self.caption)}</span>'
            f'<span class="lt-tokens-scale">{escape(self.label)} {-limit:.3g}<span class="lt-tokens-bar"></span>'
            f"+{limit:.3g}</span></figcaption>"
        )

    def _token_html(self, index: int, limit: float) -> str:
        token, value = self.tokens[index], self.values[index]
        classes = ["lt-tok", _shade(value, limit)]
        if not token:
            classes.append("none")
        text = escape(token).replace(
            "\n", '<i class="lt-nl"></i>\n'
        )  # an arrow that is not copied with the text
        # A negative tabindex lets a tap focus it, and keeps thousands of tokens out of the tab order.
        return (
            f'<span class="{" ".join(filter(None, classes))}" tabindex="-1" data-tip="{escape(self._tip(index))}">'
            f"{text}</span>"
        )

    def _tip(self, index: int) -> str:
        if self.tips is not None:
            return self.tips[index]
        value = self.values[index]
        identity = "" if self.token_ids is None else f", id {self.token_ids[index]}"
        number = "none" if value is None else f"{value:.6g}"
        return f"token {index}{identity}\n{self.tokens[index]!r}\n{self.label} {number}"


def _shade(value: float | None, limit: float) -> str:
    if value is None:
        return "off"
    if math.isnan(value):
        return "nan"
    shade = math.ceil(min(abs(value) / limit, 1.0) * _SHADES)
    return f"{'p' if value > 0 else 'm'}{shade}" if shade else ""
