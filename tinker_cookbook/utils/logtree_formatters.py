"""Objects that know how to show themselves in a report: conversations here, coloured tokens beside."""

import base64
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinker_cookbook.renderers.messages import (
    ContentPart,
    Message,
    ToolCall,
    UnparsedToolCall,
    ensure_list,
    format_content_as_string,
    message_to_jsonable,
)
from tinker_cookbook.utils.jsonable import to_jsonable
from tinker_cookbook.utils.logtree.node import escape
from tinker_cookbook.utils.logtree_tokens import TOKENS_CSS, TokensFormatter

__all__ = ["CONVERSATION_CSS", "TOKENS_CSS", "ConversationFormatter", "TokensFormatter"]

_OPEN_THINKING_UP_TO = 1500  # characters; longer thoughts are folded, so that the answer is in view
_IMAGE_SIDE = 512

CONVERSATION_CSS = """\
.lt-conversation { display: flex; flex-direction: column; gap: .5rem; }
.lt-message {
  --lt-role: var(--lt-muted); padding: .4rem .8rem .55rem; background: var(--lt-card); border-radius: 8px;
  border: 1px solid var(--lt-line); border-left: 4px solid var(--lt-role);
}
.lt-role-user { --lt-role: #3b78d8; }
.lt-role-assistant { --lt-role: #2f9e62; }
.lt-role-tool { --lt-role: #9a5fd0; }
.lt-role-system, .lt-role-developer { --lt-role: #9097a1; }
.lt-message-role {
  display: flex; flex-wrap: wrap; gap: .6rem; align-items: baseline; color: var(--lt-role); font-size: .78rem;
  font-weight: 700; letter-spacing: .03em;
}
.lt-message-note { color: var(--lt-muted); font-weight: 400; letter-spacing: 0; }
.lt-message-text { white-space: pre-wrap; }
.lt-thinking, .lt-tool-call, .lt-unparsed {
  margin: .35rem 0; padding: .3rem .7rem; border-radius: 6px; background: var(--lt-soft);
}
.lt-thinking { color: var(--lt-muted); }
.lt-thinking > summary { font-size: .8rem; }
.lt-thinking > div { white-space: pre-wrap; font-style: italic; }
.lt-tool-call > pre, .lt-unparsed > pre { margin: .2rem 0; padding: 0; border: 0; background: none; }
.lt-tool-name { font: 600 13px/1.5 var(--lt-mono); }
.lt-unparsed { background: var(--lt-error-bg); border-left: 4px solid var(--lt-error); }
.lt-unparsed-error { color: var(--lt-error); font-size: .85rem; white-space: pre-wrap; }
.lt-image { max-width: min(100%, 32rem); height: auto; border-radius: 6px; }
"""


@dataclass
class ConversationFormatter:
    """A box per message, coloured by role; thinking folds, tool calls show their arguments indented."""

    messages: Sequence[Message]

    def to_html(self) -> str:
        return f'<div class="lt-conversation">{"".join(map(_message_html, self.messages))}</div>'

    def to_data(self) -> dict[str, Any]:
        return {
            "type": "conversation",
            "messages": [message_to_jsonable(message) for message in self.messages],
        }

    def get_css(self) -> str:
        return CONVERSATION_CSS


def _message_html(message: Message) -> str:
    role = message["role"]
    slug = re.sub(r"[^a-z0-9]+", "-", role.lower())
    inner = [
        *map(_part_html, ensure_list(message["content"])),
        *map(_tool_call_html, message.get("tool_calls", ())),
        *map(_unparsed_html, message.get("unparsed_tool_calls", ())),
    ]
    notes = "".join(f'<span class="lt-message-note">{escape(note)}</span>' for note in _notes(message))
    return (
        f'<div class="lt-message lt-role-{slug}">'
        f'<div class="lt-message-role">{escape(role)}{notes}</div>{"".join(inner)}</div>'
    )


def _notes(message: Message) -> list[str]:
    notes = []
    if "name" in message:
        notes.append(message["name"])
    if "tool_call_id" in message:
        notes.append(f"answers {message['tool_call_id']}")
    if "trainable" in message:
        notes.append("trained on" if message["trainable"] else "not trained on")
    return notes


def _part_html(part: ContentPart) -> str:
    if part["type"] == "text":
        return f'<div class="lt-message-text">{escape(part["text"])}</div>'
    if part["type"] == "thinking":
        return _thinking_html(part["thinking"])
    if part["type"] == "image":
        return _image_html(part["image"])
    if part["type"] == "audio":
        return f'<div class="lt-message-text">{escape(format_content_as_string([part]))}</div>'
    # A part of a type we do not know is still worth reading.
    return f"<pre>\n{escape(json.dumps(to_jsonable(part), indent=2, ensure_ascii=False))}</pre>"


def _thinking_html(thinking: str) -> str:
    state = " open" if len(thinking) <= _OPEN_THINKING_UP_TO else ""
    summary = f"thinking, {len(thinking.split())} words"
    return f'<details class="lt-thinking"{state}><summary>{summary}</summary><div>{escape(thinking)}</div></details>'


def _tool_call_html(call: ToolCall) -> str:
    note = f' <span class="lt-message-note">{escape(call.id)}</span>' if call.id else ""
    return (
        f'<div class="lt-tool-call"><div class="lt-tool-name">{escape(call.function.name)}{note}</div>'
        f"<pre>\n{escape(_indented_json(call.function.arguments))}</pre></div>"
    )


def _indented_json(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text  # as the model wrote it


def _unparsed_html(call: UnparsedToolCall) -> str:
    return (
        f'<div class="lt-unparsed"><div class="lt-unparsed-error">unreadable tool call: {escape(call.error)}</div>'
        f"<pre>\n{escape(call.raw_text)}</pre></div>"
    )


def _image_html(image: Any) -> str:
    """Pictures in the page itself; addresses become links, since a report must not call the network."""
    if not isinstance(image, str):
        return _image_element(_png_data_uri(image), f"{image.width} × {image.height}")
    if image.startswith("data:image/"):
        return _image_element(image, "image")
    if image.startswith(("https://", "http://")):
        return f'<a href="{escape(image)}" rel="noreferrer">{escape(image)}</a>'
    return f'<div class="lt-message-text">image {escape(image)}</div>'


def _image_element(source: str, text: str) -> str:
    return f'<img class="lt-image" src="{escape(source)}" alt="{escape(text)}" title="{escape(text)}">'


def _png_data_uri(image: Any) -> str:
    small = image.convert("RGBA")
    small.thumbnail((_IMAGE_SIDE, _IMAGE_SIDE))
    buffer = io.BytesIO()
    small.save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
