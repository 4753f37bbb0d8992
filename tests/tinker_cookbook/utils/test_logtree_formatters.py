import json
import re
from pathlib import Path

import pytest

from tests.tinker_cookbook.utils import sample_report
from tests.tinker_cookbook.utils.markup import read
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.renderers.messages import Message, ToolCall, message_to_jsonable
from tinker_cookbook.utils.logtree_formatters import CONVERSATION_CSS, ConversationFormatter, TokensFormatter


class TestConversation:
    def test_roles_and_text(self):
        messages: list[Message] = [
            {"role": "user", "content": "  Hello\n\tthere"},
            {"role": "assistant", "content": "Hi", "trainable": False},
        ]
        page = read(ConversationFormatter(messages).to_html())
        assert len(page.all("div", "lt-conversation")) == 1
        assert len(page.all("div", "lt-message")) == 2
        assert [role.text for role in page.all("div", "lt-message-role")] == [
            "user",
            "assistantnot trained on",
        ]
        assert page.all("div", "lt-message-text")[0].text == "  Hello\n\tthere"
        assert page.all("div", "lt-role-assistant")[0].all("div", "lt-message-text")[0].text == "Hi"

    def test_thinking_folds_when_long(self):
        def thinking(text: str):
            part: Message = {"role": "assistant", "content": [{"type": "thinking", "thinking": text}]}
            return read(ConversationFormatter([part]).to_html()).all("details", "lt-thinking")[0]

        assert "open" in thinking("short thought").attrs
        assert thinking("short thought").all("summary")[0].text == "thinking, 2 words"
        assert "open" not in thinking("long " * 500).attrs

    def test_arguments_are_indented_or_as_they_were(self):
        def shown(arguments: str) -> str:
            call = ToolCall(function=ToolCall.FunctionBody(name="f", arguments=arguments))
            message: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
            return read(ConversationFormatter([message]).to_html()).all("pre")[0].text

        assert shown('{"a":"é"}') == '{\n  "a": "é"\n}'
        assert shown("{broken") == "{broken"

    def test_pictures_are_in_the_page_and_addresses_are_links(self):
        messages = sample_report.conversation(6, unreadable=True, long=False)
        page = read(ConversationFormatter(messages).to_html())
        assert [image.attrs["src"] for image in page.all("img")] == [sample_report.PIXEL]
        assert [link.attrs["href"] for link in page.all("a")] == ["https://example.com/pens.png"]
        assert page.all("div", "lt-unparsed")[0].text.startswith("unreadable tool call: no end")

    def test_an_image_in_memory_is_made_small(self):
        image_module = pytest.importorskip("PIL.Image")
        message: Message = {
            "role": "user",
            "content": [{"type": "image", "image": image_module.new("RGB", (2000, 1000), "red")}],
        }
        formatter = ConversationFormatter([message])
        (image,) = read(formatter.to_html()).all("img")
        assert image.attrs["src"].startswith("data:image/png;base64,")
        assert image.attrs["alt"] == "2000 × 1000"
        assert len(image.attrs["src"]) < 20_000
        json.dumps(formatter.to_data())

    def test_data_and_style(self):
        messages = sample_report.conversation(6, unreadable=True, long=False)
        formatter = ConversationFormatter(messages)
        assert formatter.to_data() == {
            "type": "conversation",
            "messages": [message_to_jsonable(message) for message in messages],
        }
        assert formatter.get_css() == CONVERSATION_CSS

    def test_a_part_of_another_type_is_shown(self):
        message = {"role": "user", "content": [{"type": "video", "video": "clip.mp4"}]}
        page = read(ConversationFormatter([message]).to_html())  # pyright: ignore[reportArgumentType]
        assert '"clip.mp4"' in page.all("pre")[0].text


class TestTokens:
    def classes(self, formatter: TokensFormatter) -> list[str]:
        spans = read(formatter.to_html()).all("span", "lt-tok")
        return [span.attrs["class"].removeprefix("lt-tok").strip() for span in spans]

    def test_colours_follow_sign_and_size(self):
        values = [2.0, 1.0, 0.0, -0.01, -2.0, None, float("nan"), float("-inf")]
        formatter = TokensFormatter(["a"] * len(values), values)
        assert self.classes(formatter) == ["p10", "p5", "", "m1", "m10", "off", "nan", "m10"]

    def test_limit_sets_the_full_colour(self):
        assert self.classes(TokensFormatter(["a", "b"], [1.0, 40.0], limit=10.0)) == ["p1", "p10"]

    def test_white_space_is_visible_and_copied_as_it_is(self):
        formatter = TokensFormatter([" a", "\n", ""], [0.0, 0.0, 0.0])
        assert self.classes(formatter) == ["", "", "none"]
        assert len(read(formatter.to_html()).all("i", "lt-nl")) == 1
        assert read(formatter.to_html()).all("div", "lt-tokens-text")[0].text == " a\n"

    def test_tip_tells_place_id_text_and_value(self):
        formatter = TokensFormatter(["a", " b\n"], [None, 0.5], token_ids=[7, 8], label="advantage")
        tips = [span.attrs["data-tip"] for span in read(formatter.to_html()).all("span", "lt-tok")]
        assert tips == ["token 0, id 7\n'a'\nadvantage none", "token 1, id 8\n' b\\n'\nadvantage 0.5"]

    def test_tips_of_ones_own(self):
        formatter = TokensFormatter(["a", "b"], [None, 0.5], tips=["<first>", "second"])
        tips = [span.attrs["data-tip"] for span in read(formatter.to_html()).all("span", "lt-tok")]
        assert tips == ["<first>", "second"]

    def test_lengths_must_agree(self):
        with pytest.raises(ConfigurationError, match=r"'values': 2"):
            TokensFormatter(["a"], [1.0, 2.0])
        with pytest.raises(ConfigurationError, match=r"'token_ids': 2"):
            TokensFormatter(["a"], [1.0], token_ids=[1, 2])
        with pytest.raises(ConfigurationError, match=r"'tips': 2"):
            TokensFormatter(["a"], [1.0], tips=["", ""])
        with pytest.raises(ConfigurationError, match="limit"):
            TokensFormatter(["a"], [1.0], limit=0)

    def test_from_ids(self):
        class Letters:
            def decode(self, token_ids: list[int], /) -> str:
                return "".join(chr(97 + token) for token in token_ids)

        formatter = TokensFormatter.from_ids([0, 2], [0.5, -1.0], Letters(), caption="c", label="logprob")
        assert formatter.to_data() == {
            "type": "tokens",
            "caption": "c",
            "label": "logprob",
            "tokens": ["a", "c"],
            "values": [0.5, -1.0],
            "token_ids": [0, 2],
        }


def test_pages_need_no_network_and_hold_all_rollouts(tmp_path: Path):
    sample_report.write(tmp_path)
    for name in ("train.html", "timing_gantt.html"):
        page = (tmp_path / name).read_text()
        document = read(page)
        assert not re.findall(r"@import|url\(", "".join(style.text for style in document.all("style")))
        assert document.all("link") == []
        assert all("src" not in script.attrs for script in document.all("script"))
        assert all(image.attrs["src"].startswith("data:") for image in document.all("img"))
    report = read((tmp_path / "train.html").read_text())
    groups = [section for section in report.all("section") if section.all("h3") and not section.all("h2")]
    titles = [[h.text for h in section.all("h4")] for section in groups]
    assert titles[:2] == [[f"Rollout {4 * g + k}" for k in range(4)] for g in range(2)]
    json.loads((tmp_path / "train_logtree.json").read_text(), parse_constant=pytest.fail)
