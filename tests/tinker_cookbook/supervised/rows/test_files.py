"""Rows from every kind of file, whole and broken."""

import bz2
import csv
import gzip
import io
import json
import pickle
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinker_cookbook.exceptions import ConfigurationError, DataError, DataFormatError, DataValidationError
from tinker_cookbook.supervised.rows import Rows, open_rows

TEXT = st.text(alphabet=st.characters(blacklist_categories=("Cs",)), max_size=20)
ROWS = [{"text": "one"}, {"text": "zwei — ü"}, {"text": "three\nlines\n"}]


def written(folder: Path, name: str, data: str | bytes) -> str:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return str(path)


def jsonl(rows: list[dict], end: str = "\n") -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + end for row in rows)


def all_of(rows: Rows) -> list[dict]:
    return [rows[index] for index in range(len(rows))]


@pytest.mark.parametrize(
    "data",
    [
        jsonl(ROWS).encode(),
        jsonl(ROWS).removesuffix("\n").encode(),
        b"\xef\xbb\xbf" + jsonl(ROWS).encode(),
        jsonl(ROWS, "\r\n").encode(),
        ("\n  \n" + jsonl(ROWS, "\n\n")).encode(),
        json.dumps(ROWS).encode(),
        b"\xef\xbb\xbf  " + json.dumps(ROWS, indent=2).encode(),
    ],
    ids=["plain", "no last newline", "byte-order mark", "crlf", "blank lines", "array", "indented array"],
)
def test_json_in_all_its_dresses(tmp_path, data):
    assert all_of(open_rows(written(tmp_path, "a.jsonl", data))) == ROWS


@pytest.mark.parametrize(
    ("suffix", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress)], ids=["gz", "bz2"]
)
def test_compressed_files_are_unpacked_on_the_way(tmp_path, suffix, pack):
    rows = open_rows(written(tmp_path, "a.jsonl" + suffix, pack(jsonl(ROWS).encode())))
    assert rows[2] == ROWS[2]
    assert pickle.loads(pickle.dumps(rows))[1] == ROWS[1]


def test_a_compressed_file_that_was_cut_short_is_named(tmp_path):
    path = written(tmp_path, "a.jsonl.gz", gzip.compress(jsonl(ROWS).encode())[:-12])
    with pytest.raises(DataFormatError, match="cannot be read"):
        open_rows(path)


def test_lines_are_counted_as_an_editor_does(tmp_path):
    rows = open_rows(written(tmp_path, "a.jsonl", "\n" + jsonl(ROWS[:1]) + "\n\n" + jsonl(ROWS[1:2])))
    assert [rows.where(i).rpartition(", ")[2] for i in range(2)] == ["line 2", "line 5"]


def test_what_is_wrong_with_a_line_is_said_when_it_is_read(tmp_path):
    data = b'{"text": "fine"}\n{"text": \n[1]\n{"text": "\xff"}\n'
    rows = open_rows(written(tmp_path, "a.jsonl", data))
    assert rows[0] == {"text": "fine"}
    for index, reason in ((1, "not JSON"), (2, "an? JSON object is needed, not list"), (3, "not UTF-8")):
        with pytest.raises(DataFormatError, match=reason):
            rows[index]


@given(
    st.lists(st.dictionaries(TEXT, TEXT), min_size=1, max_size=8), st.sampled_from(["\n", "\r\n", "\n \n"])
)
def test_any_row_can_be_read_alone(tmp_path_factory, rows, end):
    path = written(tmp_path_factory.mktemp("rows"), "a.jsonl", jsonl(rows, end))
    opened = open_rows(path)
    assert [opened[i] for i in reversed(range(len(opened)))] == rows[::-1]


CELL = st.text(alphabet=st.sampled_from('ab,;"\n\r\t é'), max_size=12)


@given(st.lists(st.tuples(CELL, CELL), min_size=1, max_size=8), st.sampled_from([",", ";", "\t"]))
def test_csv_as_the_csv_module_writes_it(tmp_path_factory, cells, delimiter):
    table = io.StringIO(newline="")
    writer = csv.writer(table, delimiter=delimiter)
    writer.writerows([("prompt", "completion"), *cells])
    opened = open_rows(written(tmp_path_factory.mktemp("rows"), "a.csv", table.getvalue()))
    found = [tuple(opened[i].values()) for i in reversed(range(len(opened)))]
    assert found == cells[::-1]


def test_csv_rows_are_known_by_the_line_they_begin_on(tmp_path):
    rows = open_rows(written(tmp_path, "a.csv", '\ufeffprompt,completion\r\na,"b\r\nc"\r\n\r\nd,e'))
    assert all_of(rows) == [
        {"prompt": "a", "completion": "b\r\nc"},
        {"prompt": "d", "completion": "e"},
    ]
    assert [rows.where(i).rpartition(", ")[2] for i in range(2)] == ["line 2", "line 5"]


def test_broken_csv_rows_are_rows_with_a_reason(tmp_path):
    rows = open_rows(written(tmp_path, "a.csv", 'prompt,completion\na\n"x"y,z\na,b\nc,"d\n'))
    reasons = {0: "1 cells for the 2 columns", 1: "not CSV", 3: "never closed"}
    assert rows[2] == {"prompt": "a", "completion": "b"}
    for index, reason in reasons.items():
        with pytest.raises(DataFormatError, match=reason):
            rows[index]


def test_a_cell_may_be_longer_than_the_csv_module_likes(tmp_path):
    assert len(open_rows(written(tmp_path, "a.tsv", f"text\tn\n{'x' * 200_000}\t1\n"))[0]["text"]) == 200_000


def test_parquet(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow  # pyright: ignore[reportMissingImports]

    messages = [[{"role": "user", "content": str(i)}] for i in range(3000)]
    table = pyarrow.table({"messages": messages, "n": list(range(3000))})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=700)
    rows = open_rows(str(tmp_path / "a.parquet"))
    assert len(rows) == 3000
    assert pickle.loads(pickle.dumps(rows))[2999] == {"messages": messages[2999], "n": 2999}
    broken = written(tmp_path, "b.parquet", b"PAR1 and nothing more")
    with pytest.raises(DataFormatError, match="cannot be read as Parquet"):
        open_rows(broken)


def test_parquet_without_its_package_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigurationError, match="pip install pyarrow"):
        open_rows(written(tmp_path, "a.parquet", b"PAR1"))


def test_a_folder_is_its_files_in_order(tmp_path, caplog):
    (tmp_path / "more").mkdir()
    written(tmp_path, "b.jsonl", jsonl(ROWS[1:]))
    written(tmp_path, "a.csv", "text\none\n")
    written(tmp_path / "more", "test.jsonl", jsonl([{"text": "last"}]))
    written(tmp_path, ".hidden.jsonl", jsonl(ROWS))
    written(tmp_path, "README.md", "no rows")
    rows = open_rows(str(tmp_path))
    assert all_of(rows) == [*ROWS, {"text": "last"}]
    assert rows.where(1) == f"{tmp_path / 'b.jsonl'}, line 1"
    assert "test.jsonl looks like held-out data" in caplog.text
    with pytest.raises(IndexError):
        rows[4]


@pytest.mark.parametrize(
    ("name", "data", "error", "words"),
    [
        ("missing.jsonl", None, DataFormatError, "there is no file"),
        ("/no/such/folder", None, DataFormatError, "there is no file"),
        ("a.jsonl", "", DataValidationError, "is empty"),
        ("a.csv", "\ufeff\n\n", DataValidationError, "is empty"),
        ("a.csv", "prompt,completion\n", DataValidationError, "has no rows"),
        ("a.json", "[]", DataValidationError, "has no rows"),
        ("a.json", "[{]", DataFormatError, "is not JSON"),
        ("a.txt", "words", DataFormatError, "must end in one of .jsonl"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(tmp_path, name, data, error, words):
    if data is not None:
        written(tmp_path, name, data)
    with pytest.raises(error, match=words) as raised:
        open_rows(str(tmp_path / name))
    assert "\n" not in str(raised.value)


def test_an_empty_folder(tmp_path):
    with pytest.raises(DataError, match="no files of rows"):
        open_rows(str(tmp_path))


def test_a_file_that_changes_while_it_is_used_is_noticed(tmp_path):
    path = written(tmp_path, "a.jsonl", jsonl(ROWS))
    rows = open_rows(path)
    with open(path, "a") as file:
        file.write(jsonl(ROWS))
    with pytest.raises(DataValidationError, match="has changed"):
        rows[0]


def test_rows_can_be_read_by_several_threads(tmp_path):
    rows = open_rows(written(tmp_path, "a.jsonl", jsonl([{"n": i} for i in range(500)])))
    wrong: list[int] = []

    def read(step: int) -> None:
        wrong.extend(i for i in range(0, 500, step) if rows[i] != {"n": i})

    threads = [threading.Thread(target=read, args=(step,)) for step in (1, 3, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
