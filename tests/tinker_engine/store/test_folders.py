from pathlib import Path

import pytest

from tinker_engine.errors import DamagedError
from tinker_engine.store.folders import (
    MANIFEST,
    folder_size,
    remove_folder,
    remove_unknown,
    verify,
    whole_folder,
    write_file,
)


class Killed(BaseException):
    """In the place of kill -9: nobody catches it."""


def write(folder: Path, *, sync: bool = False) -> Path:
    with whole_folder(folder, sync=sync) as temporary:
        (temporary / "weights").write_bytes(bytes(range(256)))
        (temporary / "sub").mkdir()
        (temporary / "sub" / "config").write_bytes(b"{}")
    return folder


@pytest.mark.parametrize("sync", [True, False])
def test_a_folder_appears_whole_and_is_verified(tmp_path, sync):
    folder = write(tmp_path / "parent" / "a", sync=sync)
    assert verify(folder) == {"weights": 256, "sub/config": 2}
    assert folder_size(folder) == 258 + (folder / MANIFEST).stat().st_size
    assert [path.name for path in folder.parent.iterdir()] == ["a"]


def test_nothing_is_left_of_a_folder_that_could_not_be_finished(tmp_path):
    def fill_the_disk():
        with whole_folder(tmp_path / "a") as temporary:
            (temporary / "weights").write_bytes(b"half")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        fill_the_disk()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", ["_write_manifest", "_sync"])
def test_a_crash_leaves_no_folder_under_its_name(tmp_path, monkeypatch, step):
    def die(_):
        raise Killed

    monkeypatch.setattr(f"tinker_engine.store.folders.{step}", die)
    monkeypatch.setattr(
        "tinker_engine.store.folders.shutil.rmtree", lambda *a, **k: None
    )  # a dead process tidies nothing
    with pytest.raises(Killed):
        write(tmp_path / "a", sync=True)
    left = [path.name for path in tmp_path.iterdir()]
    assert len(left) == 1
    assert left[0].startswith(".a.")
    monkeypatch.undo()
    assert remove_unknown(tmp_path, {"a"}) == left
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_not_replaced(tmp_path):
    folder = write(tmp_path / "a")
    with pytest.raises(OSError, match="not empty"):
        write(folder)
    assert verify(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("at", [0, 100, 255])
def test_one_flipped_bit_is_noticed(tmp_path, at):
    folder = write(tmp_path / "a")
    flip(folder / "weights", at)
    with pytest.raises(DamagedError, match="weights is not what was written"):
        verify(folder)


def test_a_cut_or_missing_file_is_noticed(tmp_path):
    folder = write(tmp_path / "a")
    (folder / "weights").write_bytes(bytes(range(255)))
    with pytest.raises(DamagedError, match="not what was written"):
        verify(folder)
    (folder / "weights").unlink()
    with pytest.raises(DamagedError, match="weights is missing"):
        verify(folder)


def test_a_folder_without_manifest_or_without_anything_is_damaged(tmp_path):
    folder = write(tmp_path / "a")
    (folder / MANIFEST).unlink()
    for gone in (folder, tmp_path / "never"):
        with pytest.raises(DamagedError, match="no manifest"):
            verify(gone)


def test_a_flipped_bit_in_the_manifest_is_noticed_or_harmless(tmp_path):
    folder = write(tmp_path / "a")
    files = verify(folder)
    whole = (folder / MANIFEST).read_bytes()
    for at in range(len(whole)):
        for bit in (1, 32, 128):
            (folder / MANIFEST).write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
            try:
                found = verify(folder)
            except DamagedError:
                continue
            assert found == files, f"byte {at}"  # e.g. in white space


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"files": []}', b'{"files": {"weights": 3}}', b'{"files": {"weights": {}}}']
)
def test_a_manifest_of_another_shape_is_damage(tmp_path, content):
    folder = write(tmp_path / "a")
    (folder / MANIFEST).write_bytes(content)
    with pytest.raises(DamagedError):
        verify(folder)


def test_removing_is_at_once_and_again_is_nothing(tmp_path):
    folder = write(tmp_path / "a")
    remove_folder(folder)
    remove_folder(folder)
    assert list(tmp_path.iterdir()) == []


def test_unknown_files_and_folders_go_and_known_ones_stay(tmp_path):
    for name in ("known", "unknown"):
        write(tmp_path / name)
    (tmp_path / "file").write_bytes(b"x")
    assert sorted(remove_unknown(tmp_path, {"known"})) == ["file", "unknown"]
    assert verify(tmp_path / "known")
    assert remove_unknown(tmp_path / "never", set()) == []


@pytest.mark.parametrize("sync", [True, False])
def test_a_file_is_replaced_whole(tmp_path, sync):
    path = tmp_path / "new" / "file"
    write_file(path, b"one", sync=sync)
    write_file(path, b"two", sync=sync)
    assert path.read_bytes() == b"two"
    with pytest.raises(TypeError):
        write_file(path, "text", sync=sync)  # pyright: ignore[reportArgumentType]
    assert path.read_bytes() == b"two"
    assert [p.name for p in path.parent.iterdir()] == ["file"]
