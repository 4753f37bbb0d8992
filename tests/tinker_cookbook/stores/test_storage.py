"""What every storage does, and what only one kind has to get right."""

import asyncio
import pickle
import subprocess
import sys
import tempfile
import threading

import fsspec
import pytest

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.stores import (
    AsyncStorage,
    FsspecStorage,
    LocalStorage,
    Storage,
    storage_from_uri,
    storage_join,
)
from tinker_cookbook.stores import _fsspec as fsspec_module


def test_both_protocols(storage):
    assert isinstance(storage, Storage)
    assert isinstance(storage, AsyncStorage)


def test_write_read_append_and_ranges(storage):
    storage.write("a/b.txt", b"hello")
    storage.append("a/b.txt", b" world")
    storage.append("a/new.txt", b"x")
    assert storage.read("a/b.txt") == b"hello world"
    assert storage.read_range("a/b.txt", 6) == b"world"
    assert storage.read_range("a/b.txt", 2, 3) == b"llo"
    assert storage.read_range("a/b.txt", 11) == b""
    assert storage.stat("a/b.txt").size == 11
    assert storage.list_dir("a") == ["b.txt", "new.txt"]
    storage.flush()
    assert storage.read("a/b.txt") == b"hello world"
    assert storage.read_range("a/b.txt", 2, 3) == b"llo"
    assert storage.read_range("a/b.txt", 11) == b""
    assert storage.list_dir("") == ["a"]
    storage.write("a/b.txt", b"new")
    assert storage.read("a/b.txt") == b"new"


def test_what_is_missing(storage):
    with pytest.raises(FileNotFoundError):
        storage.read("none")
    assert storage.stat("none") is None
    assert not storage.exists("none")
    assert storage.list_dir("none") == []
    storage.remove("none")
    storage.remove_dir("none")


def test_removing_takes_along_what_was_appended(storage):
    for name in ("d/1", "d/2", "e"):
        storage.write(name, b"x")
        storage.append(name, b"y")
    storage.remove("d/1")
    assert storage.list_dir("d") == ["2"]
    storage.remove_dir("d")
    storage.flush()
    assert storage.list_dir("") == ["e"]
    assert storage.read("e") == b"xy"


def test_times_of_change_are_of_this_day(storage):
    storage.write("a", b"x")
    assert storage.stat("a").mtime > 1e9
    storage.append("a", b"x")
    assert storage.stat("a").mtime > 1e9


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/passwd", "a/../.."])
def test_paths_do_not_escape(storage, path):
    storage.write("a/x", b"x")
    for use in (
        storage.read,
        storage.exists,
        storage.stat,
        storage.list_dir,
        storage.remove_dir,
        storage.url,
    ):
        with pytest.raises(ValueError, match="escapes"):
            use(path)
    with pytest.raises(ValueError, match="escapes"):
        storage.write(path, b"")
    with pytest.raises(ValueError, match="escapes"):
        storage.append(path, b"")


def test_the_awaitable_twins(storage):
    async def use() -> list:
        await storage.awrite("a", b"12")
        await storage.aappend("a", b"34")
        seen = [
            await storage.aread("a"),
            await storage.aread_range("a", 1, length=2),
            await storage.aexists("a"),
            (await storage.astat("a")).size,
            await storage.alist_dir(""),
        ]
        await storage.aremove("a")
        await storage.aremove_dir("none")
        return [*seen, await storage.aexists("a")]

    assert asyncio.run(use()) == [b"1234", b"23", True, 4, ["a"], False]


def test_copies_for_other_processes(storage):
    storage.write("a", b"1")
    assert pickle.loads(pickle.dumps(storage)).read("a") == b"1"


def test_leaving_the_context_writes_everything(storage):
    with storage:
        storage.append("log", b"line\n")
    assert pickle.loads(pickle.dumps(storage)).read("log") == b"line\n"


def test_appends_from_many_threads_keep_every_line_whole(storage):
    def work(number: int) -> None:
        for count in range(50):
            storage.append("log", f"{number}-{count}\n".encode())

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    storage.flush()
    lines = storage.read("log").decode().splitlines()
    assert sorted(lines) == sorted(f"{n}-{c}" for n in range(4) for c in range(50))


class TestLocal:
    def test_a_link_out_of_the_root_is_an_escape(self, tmp_path):
        (tmp_path / "secret").write_text("x")
        storage = LocalStorage(tmp_path / "root")
        (tmp_path / "root" / "link").symlink_to(tmp_path / "secret")
        with pytest.raises(ValueError, match="escapes"):
            storage.read("link")

    def test_a_write_that_fails_leaves_the_old_file(self, tmp_path, monkeypatch):
        storage = LocalStorage(tmp_path)
        storage.write("a", b"old")
        monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            storage.write("a", b"new")
        assert storage.read("a") == b"old"
        assert storage.list_dir("") == ["a"]
        assert len(list(tmp_path.iterdir())) == 1

    def test_leftovers_of_a_killed_write_are_not_listed(self, tmp_path):
        storage = LocalStorage(tmp_path)
        (tmp_path / ".a.12345678.unfinished").write_text("half")
        assert storage.list_dir("") == []

    def test_home_and_looking_without_creating(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        storage = LocalStorage("~/runs", mkdir=False)
        assert storage.root == tmp_path / "runs"
        assert storage.list_dir("") == []
        assert not (tmp_path / "runs").exists()


class TestObjectStore:
    def test_appends_wait_for_the_flush(self, memory_uri):
        storage, other = storage_from_uri(memory_uri), storage_from_uri(memory_uri)
        storage.append("log", b"1\n")
        assert not other.exists("log")
        storage.flush()
        other.append("log", b"2\n")
        other.flush()
        storage.append("log", b"3\n")
        storage.flush()
        assert other.read("log") == b"1\n2\n3\n"

    def test_a_copy_does_not_take_what_waits(self, memory_uri):
        storage = storage_from_uri(memory_uri)
        storage.append("log", b"1\n")
        copy = pickle.loads(pickle.dumps(storage))
        copy.flush()
        assert not copy.exists("log")
        storage.flush()
        assert copy.read("log") == b"1\n"

    def test_a_flush_that_fails_loses_nothing_and_writes_the_rest(self, memory_uri, monkeypatch, caplog):
        storage = storage_from_uri(memory_uri)
        assert isinstance(storage, FsspecStorage)
        for name in ("bad", "good"):
            storage.append(name, b"1\n")
        put = storage._fs.pipe_file

        def refuse(key: str, data: bytes) -> None:
            if key.endswith("bad"):
                raise OSError("no connection")
            put(key, data)

        monkeypatch.setattr(storage._fs, "pipe_file", refuse)
        with pytest.raises(OSError, match="no connection"):
            storage.close()
        assert storage_from_uri(memory_uri).list_dir("") == ["good"]
        assert "bad" in caplog.text
        monkeypatch.undo()
        storage.append("bad", b"2\n")
        storage.close()
        assert storage_from_uri(memory_uri).read("bad") == b"1\n2\n"

    def test_at_exit_what_cannot_be_written_is_saved_on_this_machine(
        self, memory_uri, monkeypatch, caplog, tmp_path
    ):
        storage = storage_from_uri(memory_uri)
        assert isinstance(storage, FsspecStorage)
        storage.append("deep/log", b"1\n")
        with monkeypatch.context() as patch:
            patch.setattr(storage._fs, "pipe_file", lambda *_: (_ for _ in ()).throw(OSError("too late")))
            patch.setattr(tempfile, "tempdir", str(tmp_path))
            fsspec_module._flush_at_exit()
        (folder,) = tmp_path.iterdir()
        assert (folder / "deep" / "log").read_bytes() == b"1\n"
        assert str(folder) in caplog.text

    def test_the_end_of_the_process_writes_what_nobody_flushed(self, tmp_path):
        script = (
            "import fsspec\nfrom tinker_cookbook.stores import FsspecStorage\n"
            f"FsspecStorage(fsspec.filesystem('file'), {str(tmp_path)!r}).append('log', b'1')\n"
        )
        subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
        assert (tmp_path / "log").read_bytes() == b"1"

    def test_filesystem_by_name_or_as_object(self):
        by_name = FsspecStorage("memory", "/some-bucket/y")
        as_object = FsspecStorage(fsspec.filesystem("memory"), "/some-bucket/y/")
        by_name.write("a", b"1")
        assert as_object.read("a") == b"1"
        assert by_name.url("a") == as_object.url("a")


class TestUris:
    def test_schemes(self, tmp_path, memory_uri):
        assert isinstance(storage_from_uri(str(tmp_path)), LocalStorage)
        assert storage_from_uri(f"file://{tmp_path}/x").url() == str(tmp_path / "x")
        assert isinstance(storage_from_uri(memory_uri), FsspecStorage)
        assert storage_from_uri(str(tmp_path / "no"), mkdir=False).list_dir("") == []
        assert not (tmp_path / "no").exists()

    def test_the_url_of_a_storage_opens_it_again(self, storage):
        storage.write("a/b", b"1")
        assert storage_from_uri(storage.url("a")).read("b") == b"1"

    def test_a_uri_that_lost_a_slash_is_no_folder(self):
        with pytest.raises(ConfigurationError, match=r"pass 's3://bucket/x'"):
            storage_from_uri("s3:/bucket/x")

    @pytest.mark.parametrize(
        ("parts", "joined"),
        [
            ((), ""),
            (("",), ""),
            (("", "a"), "a"),
            (("a/", "/b", "", "c"), "a/b/c"),
            (("a//b", "."), "a/b"),
            (("./",), ""),
            (("s3://b/x", "y"), "s3://b/x/y"),
            (("s3://b/x//",), "s3://b/x"),
        ],
    )
    def test_join(self, parts, joined):
        assert storage_join(*parts) == joined


def test_importing_the_stores_imports_nothing_heavy():
    script = (
        "import sys, tinker_cookbook.stores\n"
        "print([m for m in ('torch', 'tinker', 'transformers', 'fsspec') if m in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60
    )
    assert ran.stdout.strip() == "[]"
