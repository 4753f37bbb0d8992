"""JSON lines: whole ones are kept, broken ones cost nothing but themselves."""

import asyncio
import json
import pickle
import threading

import numpy as np
import pytest

from tinker_cookbook.exceptions import DataFormatError
from tinker_cookbook.stores import IncrementalReader, LocalStorage
from tinker_cookbook.stores._jsonl import LineAppender, decode_lines, read_json, read_jsonl


def test_a_line_cut_off_by_a_crash_costs_only_itself(storage, caplog):
    storage.write("m", b'{"step": 0}\n{"step": 1, "lo')
    appender = LineAppender(storage)
    appender.append("m", {"step": 2})
    appender.append("m", {"step": 3})
    storage.flush()
    assert [row["step"] for row in read_jsonl(storage, "m")] == [0, 2, 3]
    assert "skipping a line" in caplog.text
    assert storage.read("m").count(b"\n") == 4


def test_an_append_that_fails_half_way_is_noticed_by_the_same_writer(tmp_path, monkeypatch):
    storage = LocalStorage(tmp_path)
    appender = LineAppender(storage)
    appender.append("m", {"step": 0})
    whole = LocalStorage.append

    def fails(self, path, data):
        whole(self, path, data[:4])
        raise OSError("disk full")

    monkeypatch.setattr(LocalStorage, "append", fails)
    with pytest.raises(OSError, match="disk full"):
        appender.append("m", {"step": 1})
    monkeypatch.undo()
    appender.append("m", {"step": 2})
    assert [row["step"] for row in read_jsonl(storage, "m")] == [0, 2]


def test_the_end_of_a_file_is_looked_at_once(tmp_path, monkeypatch):
    storage = LocalStorage(tmp_path)
    looks = []
    stat = LocalStorage.stat
    monkeypatch.setattr(LocalStorage, "stat", lambda self, path: looks.append(path) or stat(self, path))
    appender = LineAppender(storage)
    for step in range(3):
        appender.append("m", {"step": step})
    assert looks == ["m"]


@pytest.mark.parametrize("bad", [b"nonsense", b"[1]", b"12", b"\xff\xfe", b"\x00\x00\x00\x00"])
def test_lines_that_are_no_objects_are_skipped(bad, caplog):
    assert decode_lines(b'{"a": 1}\n' + bad + b'\n\n{"a": 2}', "file") == [{"a": 1}, {"a": 2}]
    assert "line 2" in caplog.text


def test_a_broken_json_file_is_named(storage):
    storage.write("config.json", b"{")
    with pytest.raises(DataFormatError, match=r"config\.json"):
        read_json(storage, "config.json")
    assert read_json(storage, "none") is None


def test_numbers_of_numpy(storage):
    LineAppender(storage).append("m", {"a": np.float32(0.5), "b": np.int64(3), "c": np.array([1, 2])})
    assert json.loads(storage.read("m")) == {"a": 0.5, "b": 3, "c": [1, 2]}


class TestIncrementalReader:
    def test_only_new_and_complete_lines(self, storage):
        reader = IncrementalReader(storage, "m")
        assert (reader.read(), reader.has_data()) == ([], False)
        storage.append("m", b'{"step": 0, "a": 1}\n{"step": 1,')
        assert reader.has_data()
        assert reader.read() == [{"step": 0, "a": 1}]
        assert reader.read() == []
        storage.append("m", b' "b": 2}\nbroken\n{"step": 2}\n')
        storage.flush()
        assert reader.read() == [{"step": 1, "b": 2}, {"step": 2}]
        assert [row["step"] for row in reader.records] == [0, 1, 2]
        assert reader.total_read == 3
        assert reader.known_keys == {"a", "b"}

    def test_half_a_letter_is_half_a_line(self, storage):
        line = '{"a": "é"}\n'.encode()
        reader = IncrementalReader(storage, "m")
        storage.append("m", line[:8])
        assert reader.read() == []
        storage.append("m", line[8:])
        assert reader.read() == [{"a": "é"}]

    def test_keeps_the_latest(self, storage):
        storage.write("m", b"".join(b'{"step": %d}\n' % n for n in range(10)))
        reader = IncrementalReader(storage, "m", max_records=3)
        assert len(asyncio.run(reader.aread())) == 10
        assert [row["step"] for row in reader.records] == [7, 8, 9]
        assert reader.total_read == 10

    def test_a_file_that_was_replaced_is_read_anew(self, storage):
        storage.write("m", b'{"step": 0}\n{"step": 1}\n')
        reader = IncrementalReader(storage, "m")
        reader.read()
        storage.write("m", b'{"step": 5}\n')
        assert reader.read() == [{"step": 5}]
        assert reader.records == [{"step": 5}]

    def test_a_copy_goes_on_where_it_was(self, storage):
        storage.write("m", b'{"step": 0}\n')
        reader = IncrementalReader(storage, "m")
        reader.read()
        copy = pickle.loads(pickle.dumps(reader))
        storage.append("m", b'{"step": 1}\n')
        storage.flush()
        assert copy.read() == [{"step": 1}]

    def test_many_threads_get_every_line_once(self, tmp_path):
        storage = LocalStorage(tmp_path)
        reader, got = IncrementalReader(storage, "m"), []
        start = threading.Barrier(5)

        def read() -> None:
            start.wait(10)
            for _ in range(100):
                got.extend(reader.read())

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        start.wait(10)
        for step in range(200):
            storage.append("m", b'{"step": %d}\n' % step)
        for thread in threads:
            thread.join()
        got.extend(reader.read())
        assert sorted(row["step"] for row in got) == list(range(200))
