"""No text may leave its element, whoever wrote it."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tinker_cookbook.utils.markup import Element, read
from tinker_cookbook.renderers.messages import Message, ToolCall, UnparsedToolCall
from tinker_cookbook.utils import logtree
from tinker_cookbook.utils.logtree_formatters import ConversationFormatter, TokensFormatter
from tinker_cookbook.utils.trace import IterationWindow, save_gantt_chart_html

PIECES = [
    "<",
    ">",
    "&",
    '"',
    "'",
    "`",
    "</",
    "<!--",
    "-->",
    "]]>",
    "<![CDATA[",
    "<?",
    "&lt;",
    "&#13",
    "\r\n",
    "\n",
    "\0",
]
PIECES += [
    "</p>",
    "</pre>",
    "</details>",
    "</span>",
    "</style>",
    "</script>",
    "<script>",
    "</title>",
    "javascript:",
]
texts = st.one_of(
    st.text(),
    st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=8).map("".join),
)
PLAIN = "x"


def shown(text: str) -> str:
    """Control characters and lone surrogates cannot be written in HTML: they have stand-ins."""
    text = re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f]", lambda found: chr(0x2400 + ord(found[0])), text)
    return re.sub(r"[\ud800-\udfff]", "\ufffd", text.replace("\x7f", "\u2421"))


def report(text: str) -> Element:
    with logtree.init_trace(text) as trace:
        with (
            logtree.scope_header(text, title_=text),
            logtree.scope_div(data_x=text),
            logtree.scope_details(text),
        ):
            logtree.log_text(text)
            logtree.details(text, summary=text)
            logtree.details(text, pre=False)
            logtree.header(text)
            logtree.table([{"a": text}], caption=text)
            logtree.table_from_dict({text: text}, key_header=text)
        try:
            with logtree.scope_header("fails"):
                raise ValueError(text)
        except ValueError:
            pass
        with logtree.scope_header("three, so that there are contents"):
            pass
    return read(trace.get_html())


@settings(deadline=None)
@given(texts)
def test_reports(text: str):
    page = report(text)
    assert page.shape == report(PLAIN).shape
    main = page.all("main")[0]
    assert main.all("p", "lt-p")[0].text == shown(text)
    assert main.all("pre")[0].text == shown(text)
    assert main.all("td")[0].text == shown(text)
    assert main.all("section")[0].attrs["title"] == shown(text)


def conversation(text: str) -> Element:
    call = ToolCall(id=text or "id", function=ToolCall.FunctionBody(name=text, arguments=f"[{text}"))
    messages: list[Message] = [
        {"role": text, "content": text, "name": text, "tool_call_id": text},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": text},
                {"type": "thinking", "thinking": text},
                {"type": "image", "image": f"https://{text}"},
                {"type": "image", "image": f"data:image/png;base64,{text}"},
                {"type": "image", "image": f"javascript:{text}"},
                {"type": "audio", "audio": text},
            ],
            "tool_calls": [call],
            "unparsed_tool_calls": [UnparsedToolCall(raw_text=text, error=text)],
        },
    ]
    return read(ConversationFormatter(messages).to_html())


@settings(deadline=None)
@given(texts)
def test_conversations(text: str):
    page = conversation(text)
    assert page.shape == conversation(PLAIN).shape
    assert page.all(css_class="lt-message-text")[0].text == shown(text)
    assert page.all("details", "lt-thinking")[0].all("div")[0].text == shown(text)
    assert page.all("pre")[-1].text == shown(text)


@settings(deadline=None)
@given(st.lists(st.tuples(texts, st.floats() | st.none())), texts)
def test_tokens(pairs: list[tuple[str, float | None]], label: str):
    tokens, values = [token for token, _ in pairs], [value for _, value in pairs]
    page = read(TokensFormatter(tokens, values, caption=label, label=label).to_html())
    spans = page.all("span", "lt-tok")
    assert [span.text for span in spans] == [shown(token) for token in tokens]
    assert page.all("span", "lt-tokens-caption")[0].text == shown(label)


@settings(deadline=None)
@given(texts)
def test_charts(tmp_path_factory, text: str):
    path = tmp_path_factory.getbasetemp() / "chart.html"
    window = IterationWindow()
    window.record_span(text, 0, 1)
    save_gantt_chart_html(window, 3, path)
    (tip,) = read(path.read_text()).all("rect")[0].all("title")
    assert tip.text.startswith(shown(text))
