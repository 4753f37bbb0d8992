import asyncio
import contextlib
import json
import logging
import os
import pickle
from pathlib import Path

import jinja2
import pytest

from tests.tinker_cookbook.utils.markup import Element, read
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.utils import logtree


def main_of(trace: logtree.Trace) -> Element:
    (main,) = read(trace.get_html()).all("main")
    return main


def lines(element: Element) -> list[str]:
    return [p.text for p in element.all("p", "lt-p")]


class Coloured:
    def __init__(self, text: str, css: str = ".red { color: red; }"):
        self.text, self.css = text, css

    def to_html(self) -> str:
        return f'<b class="red">{self.text}</b>'

    def get_css(self) -> str:
        return self.css

    def to_data(self):
        return {"type": "coloured", "text": self.text, "score": float("nan")}


class WithoutData:
    def to_html(self) -> str:
        return "<i>x</i>"

    def get_css(self) -> str:
        return ""


def log_everything() -> None:
    with logtree.scope_header("section", class_="mine"), logtree.scope_div(), logtree.scope_details("more"):
        logtree.log_text("text")
        logtree.log_html("<b>bold</b>")
        logtree.log_formatter(Coloured("red"))
        logtree.details("long", summary="Long")
        logtree.header("heading")
        logtree.table([{"a": 1}])
        logtree.table_from_dict({"a": 1})
        logtree.table_from_dict_of_lists({"a": [1]})


def test_without_a_report_nothing_happens():
    log_everything()
    with logtree.optional_enable_logging(True):
        log_everything()
    assert logtree.flush_trace() is False


def test_a_disabled_block_logs_nothing(tmp_path: Path):
    with logtree.init_trace("t", tmp_path / "a.html") as trace:
        with logtree.scope_disable():
            log_everything()
            assert logtree.flush_trace() is False
        with logtree.optional_enable_logging(False):
            log_everything()
        assert trace.root.children == []
        with logtree.optional_enable_logging(True):
            logtree.log_text("seen")
    assert lines(main_of(trace)) == ["seen"]


def test_sections_nest_with_levels_that_end_at_six():
    with logtree.init_trace("t") as trace:
        with logtree.scope_header("one", data_index=3, hidden=False, class_="mine"):
            logtree.log_text("in one")
            with logtree.scope_header("two"):
                logtree.header("beside")
        with contextlib.ExitStack() as stack:
            for _ in range(8):
                stack.enter_context(logtree.scope_header("deep"))
    main = main_of(trace)
    one, two, *_ = main.all("section")
    assert one.attrs["class"] == "lt-section mine"
    assert one.attrs["data-index"] == "3"
    assert "hidden" not in one.attrs
    assert [h.text for h in one.all("h2") + two.all("h3") + two.all("h4")] == ["one", "two", "beside"]
    assert len(main.all("h6")) == 4
    assert main.all("h7") == []


def test_sections_fold_in_the_page_and_are_plain_in_json():
    with logtree.init_trace("t") as trace, logtree.scope_header("one"):
        logtree.log_text("a")
    (details,) = main_of(trace).all("details")
    assert "open" in details.attrs
    section = trace.to_dict()["root"]["children"][0]
    assert section["tag"] == "section"
    assert [child["tag"] for child in section["children"]] == ["h2", "p"]
    assert section["children"][1] == {"tag": "p", "attrs": {"class": "lt-p"}, "children": ["a"]}


def test_a_bad_attribute_name_is_refused():
    with (
        logtree.init_trace("t"),
        pytest.raises(ConfigurationError, match="attribute"),
        logtree.scope_div(**{"x onload=alert(1)": 1}),
    ):
        pass


def test_decorators_keep_results_and_title_sections():
    @logtree.scope_header_decorator
    def plain(x: int) -> int:
        logtree.log_text("plain text")
        return x + 1

    @logtree.scope_header_decorator("Given title")
    async def coroutine(x: int) -> int:
        logtree.log_text("async text")
        return x + 2

    assert plain(1) == 2
    with logtree.init_trace("t") as trace:
        assert plain(1) == 2
        assert asyncio.run(coroutine(1)) == 3
    assert [h.text for h in main_of(trace).all("h2")] == ["plain", "Given title"]
    assert plain.__name__ == "plain"


def test_formatters_share_their_style_and_give_data_to_json():
    with logtree.init_trace("t") as trace:
        logtree.log_formatter(Coloured("one"))
        logtree.log_formatter(Coloured("two"))
        logtree.log_formatter(WithoutData())  # pyright: ignore[reportArgumentType]
    assert trace.get_html().count(".red { color: red; }") == 1
    assert [b.text for b in main_of(trace).all("b", "red")] == ["one", "two"]
    first, _, third = trace.to_dict()["root"]["children"]
    assert first["data"] == {"type": "coloured", "text": "one", "score": "NaN"}
    assert first["children"] == []
    assert third["children"] == ["<i>x</i>"]
    assert "data" not in third


def test_style_cannot_leave_its_element():
    with logtree.init_trace("t") as trace:
        logtree.log_formatter(Coloured("x", '.a::after { content: "</STYLE><script>"; }'))
    document = read(trace.get_html())
    assert len(document.all("style")) == 1
    assert len(document.all("script")) == 1  # the page's own


# --- tables -----------------------------------------------------------------------------------------------


def cells(trace: logtree.Trace) -> list[list[str]]:
    return [[cell.text for cell in row.all("th") + row.all("td")] for row in main_of(trace).all("tr")]


def test_rows_of_dictionaries_have_all_their_keys():
    with logtree.init_trace("t") as trace:
        logtree.table([{"a": 1, "b": 0.123456789}, {"b": True, "c": None}], caption="Numbers <")
    assert cells(trace) == [["a", "b", "c"], ["1", "0.12346", ""], ["", "True", "None"]]
    assert main_of(trace).all("caption")[0].text == "Numbers <"
    assert main_of(trace).all("td")[1].attrs == {"class": "lt-num", "title": "0.123456789"}


def test_rows_of_lists_have_no_heading_and_no_rows_say_so():
    with logtree.init_trace("t") as trace:
        logtree.table([["x", 1], ("y", 2)])
        logtree.table([])
    assert cells(trace) == [["x", "1"], ["y", "2"], ["no rows"]]


def test_a_data_frame_is_a_table():
    class Frame:  # what a pandas.DataFrame has; pandas is not needed for this
        columns = ("name", "score")

        def itertuples(self, index: bool, name: None):
            assert index is False
            return iter([("x", 1.5)])

    with logtree.init_trace("t") as trace:
        logtree.table(Frame())
    assert cells(trace) == [["name", "score"], ["x", "1.5"]]


@pytest.mark.parametrize("wrong", [{"a": 1}, [1, 2], ["ab"], [{"a": 1}, [1]]])
def test_what_is_no_table_is_refused(wrong: object):
    with logtree.init_trace("t"), pytest.raises(TypeError, match=r"table\(\) takes"):
        logtree.table(wrong)


def test_tables_of_a_dictionary():
    with logtree.init_trace("t") as trace:
        logtree.table_from_dict({"b": 1, "a": 2}, key_header="k", value_header="v", sort_by="key")
        logtree.table_from_dict({"b": 2, "a": 1}, sort_by="value")
        logtree.table_from_dict({"b": 2, 1: "x"}, sort_by="key")
        with pytest.raises(ConfigurationError, match="sort_by"):
            logtree.table_from_dict({}, sort_by="size")
    rows = cells(trace)
    assert rows[:3] == [["k", "v"], ["a", "2"], ["b", "1"]]
    assert rows[4:6] == [["a", "1"], ["b", "2"]]
    assert rows[7:] == [["1", "x"], ["b", "2"]]


def test_tables_of_columns():
    with logtree.init_trace("t") as trace:
        logtree.table_from_dict_of_lists({"a": [1, 2], "b": ["x", "y"]}, order=["b"])
        with pytest.raises(ConfigurationError, match="length"):
            logtree.table_from_dict_of_lists({"a": [1], "b": []})
        with pytest.raises(ConfigurationError, match="order"):
            logtree.table_from_dict_of_lists({"a": [1]}, order=["z"])
    assert cells(trace) == [["b", "a"], ["x", "1"], ["y", "2"]]


# --- errors and files -------------------------------------------------------------------------------------


def fail() -> None:
    raise ValueError("that <went> wrong")


def test_an_error_is_shown_once_where_it_was_raised_and_the_page_is_written(tmp_path: Path):
    path = tmp_path / "new" / "page.html"
    with pytest.raises(ValueError, match="wrong"), logtree.init_trace("t", path):  # noqa: PT012
        logtree.log_text("before")
        with logtree.scope_header("outer"), logtree.scope_header("inner"):
            fail()
    document = read(path.read_text())
    (error,) = document.all("details", "lt-error")
    assert "ValueError: that <went> wrong" in error.text
    assert "in fail" in error.text
    assert "contextlib" not in error.text
    assert "_inside" not in error.text
    (inner,) = [s for s in document.all("section") if s.all("h3") and not s.all("h2")]
    assert inner.all("details", "lt-error") == [error]


def test_an_error_can_leave_the_page_unwritten(tmp_path: Path):
    with (
        pytest.raises(ValueError, match="wrong"),
        logtree.init_trace("t", tmp_path / "a", write_on_error=False),
    ):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_recorded_error_can_still_be_pickled_and_is_new_to_another_report():
    error = ValueError("x")
    for _ in range(2):
        with pytest.raises(ValueError, match="x"), logtree.init_trace("t") as trace:
            raise error
        assert len(main_of(trace).all("details", "lt-error")) == 1
        error = pickle.loads(pickle.dumps(error))


def test_a_cancelled_section_says_so():
    async def run() -> logtree.Trace:
        started = asyncio.Event()

        async def wait() -> None:
            with logtree.scope_header("waits"):
                started.set()
                await asyncio.Event().wait()

        with logtree.init_trace("t") as trace:
            task = asyncio.create_task(wait())
            await started.wait()
            task.cancel()
            await asyncio.wait([task])
        return trace

    assert lines(main_of(asyncio.run(run()))) == ["CancelledError"]


def test_the_first_error_is_raised_even_if_the_page_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "file").write_text("not a folder")
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(ValueError, match="wrong"),
        logtree.init_trace("Mine", tmp_path / "file" / "page.html"),
    ):
        fail()
    assert "'Mine' could not be written" in caplog.text


def test_a_page_that_cannot_be_written_is_an_error(tmp_path: Path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(OSError, match="file"), logtree.init_trace("t", tmp_path / "file" / "page.html"):
        pass


def test_flush_writes_what_there_is_and_whole_pages_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "page.html"
    with logtree.init_trace("t", path), logtree.scope_header("open"):
        logtree.log_text("one")
        assert logtree.flush_trace() is True
        assert lines(read(path.read_text())) == ["one"]
        logtree.log_text("two")
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
            with pytest.raises(OSError, match="disk full"):
                logtree.flush_trace()
        assert lines(read(path.read_text())) == ["one"]
        assert list(tmp_path.iterdir()) == [path]
    assert lines(read(path.read_text())) == ["one", "two"]


def test_flush_without_a_file():
    with logtree.init_trace("t"):
        assert logtree.flush_trace() is False


def test_json_file(tmp_path: Path):
    with logtree.init_trace("Title", tmp_path / "a.html") as trace:
        logtree.log_text("lone \ud800 surrogate")
    logtree.write_trace_json(trace, tmp_path / "a.json")
    written = json.loads((tmp_path / "a.json").read_text())
    assert list(written) == ["title", "started_at", "path", "root"]
    assert written["title"] == "Title"
    assert written["path"] == str(tmp_path / "a.html")
    assert written["root"]["children"][0]["children"] == ["lone \ud800 surrogate"]
    assert lines(read((tmp_path / "a.html").read_text())) == ["lone \ufffd surrogate"]


def test_templates(tmp_path: Path):
    template = (
        "<!doctype html><html>{{ head }}<body><h1>{{ title }}, {{ extra }}</h1>{{ content }}</body></html>"
    )
    env = jinja2.Environment(loader=jinja2.DictLoader({"page.html": template}), autoescape=True)
    with logtree.init_trace("A <title>") as trace:
        logtree.log_text("text & more")
    context = logtree.jinja_context(trace, extra="<x>")
    text = logtree.render_with_jinja(env, "page.html", context=context, write_to=tmp_path / "out.html")
    document = read(text)
    assert document.all("h1")[0].text == "A <title>, <x>"
    assert lines(document) == ["text & more"]
    assert (tmp_path / "out.html").read_text() == text


def test_a_page_around_markup(tmp_path: Path):
    theme = logtree.Theme(css_vars={"lt-bg": "pink"}, css_urls=["mine.css"])
    logtree.write_html_with_default_style(
        "<p>x</p>", tmp_path / "a.html", title="<T>", theme=theme, lang="de", extra_head="<meta name=a>"
    )
    document = read((tmp_path / "a.html").read_text())
    assert document.all("html")[0].attrs == {"lang": "de"}
    assert document.all("title")[0].text == "<T>"
    assert document.all("link")[0].attrs["href"] == "mine.css"
    assert document.all("style")[0].text.strip().endswith(":root { --lt-bg: pink; }")
    assert document.all("body")[0].all("p")[0].text == "x"
    with logtree.init_trace("t") as trace:
        logtree.log_text("y")
    logtree.write_html_with_default_style(
        trace.body_html(), tmp_path / "b.html", theme=logtree.Theme(css_text="")
    )
    document = read((tmp_path / "b.html").read_text())
    assert len(document.all("body")) == 1
    assert document.all("style")[0].text.strip() == ""


# --- concurrency ------------------------------------------------------------------------------------------


def test_tasks_do_not_interleave():
    async def rollout(name: str, turn: asyncio.Barrier) -> None:
        for k in range(3):
            await turn.wait()
            logtree.log_text(f"{name}{k}")
            with logtree.scope_header(f"{name} section {k}"):
                await turn.wait()
                logtree.log_text(f"{name}{k} inside")

    async def run() -> None:
        turn = asyncio.Barrier(4)
        with logtree.scope_header("group"):
            await asyncio.gather(*(rollout(name, turn) for name in "abcd"))
            logtree.log_text("after")

    with logtree.init_trace("t") as trace:
        asyncio.run(run())
    main = main_of(trace)
    tasks = [place for place in main.all("div", "lt-task") if not place.all("h2")]
    expected = {
        name: [text for k in range(3) for text in (f"{name}{k}", f"{name}{k} inside")] for name in "abcd"
    }
    assert sorted(map(lines, tasks)) == sorted(expected.values())
    assert {len(place.all("section")) for place in tasks} == {3}
    assert {h.text for h in main.all("h3")} == {f"{name} section {k}" for name in "abcd" for k in range(3)}
    assert lines(main)[-1] == "after"


def test_threads_started_by_tasks_log_into_their_section():
    async def work(name: str) -> None:
        with logtree.scope_header(name):
            await asyncio.to_thread(logtree.log_text, f"from {name}'s thread")

    async def run() -> None:
        await asyncio.gather(*map(work, "ab"))

    with logtree.init_trace("t") as trace:
        asyncio.run(run())
    sections = main_of(trace).all("section")
    assert {s.all("h2")[0].text: lines(s) for s in sections} == {
        "a": ["from a's thread"],
        "b": ["from b's thread"],
    }


def test_two_reports_at_once_keep_apart():
    async def report(name: str, turn: asyncio.Barrier) -> list[str]:
        with logtree.init_trace(name) as trace:
            for k in range(2):
                await turn.wait()
                logtree.log_text(f"{name}{k}")
        return lines(main_of(trace))

    async def run() -> list[list[str]]:
        turn = asyncio.Barrier(2)
        return list(await asyncio.gather(report("a", turn), report("b", turn)))

    assert asyncio.run(run()) == [["a0", "a1"], ["b0", "b1"]]


def test_a_section_that_is_never_finished_makes_no_noise():
    """Its block ends in another context, when the coroutine is collected."""

    async def waits() -> None:
        with logtree.scope_header("waits"):
            await asyncio.Event().wait()

    async def run() -> logtree.Trace:
        with logtree.init_trace("t") as trace:
            coroutine = waits()
            coroutine.send(None)
            await asyncio.to_thread(coroutine.close)
        return trace

    assert [h.text for h in main_of(asyncio.run(run())).all("h2")] == ["waits"]


def test_size_grows_with_content_and_not_with_depth():
    def nested(depth: int) -> int:
        node = logtree.Node("p", {}, ["x"])
        for _ in range(depth):
            node = logtree.Node("div", {}, [node, logtree.Node("p", {}, ["y"])])
        return len(node.to_html())

    assert nested(400) < 2.1 * nested(200)


def test_contents_link_to_sections_and_stay_short():
    with logtree.init_trace("t") as trace, logtree.scope_header("All <of> it"):
        for k in range(500):
            with logtree.scope_header(f"Part {k}"):
                logtree.log_text("x")
    document = read(trace.get_html())
    links = document.all("details", "lt-toc")[0].all("a")
    assert links[0].text == "All <of> it"
    assert len(links) == 300
    assert {link.attrs["href"][1:] for link in links} <= {s.attrs["id"] for s in document.all("section")}
