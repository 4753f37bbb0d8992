import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection

from tests.tinker_engine.core.support import LORA
from tinker_engine.core.checkpoints import (
    EPHEMERAL,
    KINDS,
    LONGEST_TTL,
    Checkpoints,
    check_name,
    expiry,
    parse_path,
)
from tinker_engine.core.records import Checkpoint
from tinker_engine.errors import DamagedError, InputError, NotFoundError
from tinker_engine.store.database import Database
from tinker_engine.store.folders import verify, whole_folder

ODD = [
    "",
    ".",
    "..",
    "a/b",
    "../a",
    "/etc/passwd",
    "a\\b",
    "\0",
    "a\0",
    "a\n",
    "ü",
    "a b",
    "-a",
    ".a",
    "x" * 129,
    "%2e%2e",
]
names = st.one_of(
    st.sampled_from(ODD),
    st.text(max_size=200),
    st.text("./\\%2eEfF\0-_a", max_size=20),
)


@given(names)
def test_a_name_that_is_accepted_is_a_plain_file_name(name):
    try:
        accepted = check_name(name)
    except InputError:
        return
    assert accepted == name
    assert name.isascii()
    assert 1 <= len(name) <= 128
    assert name[0] not in ".-_"
    assert not set(name) & set("/\\\0\n %")


@pytest.mark.parametrize("name", ODD)
def test_odd_names_are_refused(name):
    with pytest.raises(InputError, match="must be 1 to 128 letters"):
        check_name(name)


@given(st.one_of(names, st.builds("tinker://{}/{}/{}".format, names, st.sampled_from([*KINDS, "x"]), names)))
def test_a_path_has_three_parts_or_is_refused(path):
    try:
        run, kind, name = parse_path(path)
    except InputError:
        return
    assert path == f"tinker://{run}/{kind}/{name}"
    assert kind in KINDS
    assert "/" not in run + name


@pytest.mark.parametrize("ttl", [0, -1, LONGEST_TTL + 1])
def test_a_time_to_live_must_make_sense(ttl):
    with pytest.raises(InputError, match="ttl_seconds"):
        expiry(ttl)


class Shelf:
    def __init__(self, folder):
        self.data = folder
        self._url = f"sqlite:///{folder / 'engine.db'}"
        self.database = Database(self._url, durable=False)
        self.removed: list[str] = []
        self.checkpoints = Checkpoints(self.database, folder, self.removed.extend)

    def restart(self) -> None:
        self.database.close()
        self.database = Database(self._url, durable=False)
        self.checkpoints = Checkpoints(self.database, self.data, self.removed.extend)

    def put(self, id: str, name: str = "a", kind: str = "weights", owner: str = "me", **more) -> Checkpoint:
        with whole_folder(self.checkpoints.folder(id), sync=False) as folder:
            (folder / "weights").write_text(id)
        made = Checkpoint(
            id,
            f"{owner}:train:0",
            kind,
            name,
            owner,
            "m",
            dict(LORA),
            f"checkpoints/{id}",
            10,
            1.0,
            1.0,
            None,
            False,
            None,
        )
        made = replace(made, **more)
        self.database.submit(self.checkpoints.adding(made)).result(30)
        self.checkpoints.added(made)
        return made


@pytest.fixture
def shelf(tmp_path) -> Iterator[Shelf]:
    shelf = Shelf(tmp_path)
    yield shelf
    shelf.database.close()


@given(names)
def test_no_path_of_a_client_leads_out_of_the_data_directory(shelf_of_one, path):
    """Paths are looked up, never joined."""
    for spelled in (path, f"tinker://me:train:0/weights/{path}", f"tinker://{path}/weights/a"):
        try:
            found = shelf_of_one.checkpoints.find(spelled, "me")
        except (InputError, NotFoundError):
            continue
        assert found.id == "c1"


@pytest.fixture(scope="module")
def shelf_of_one(tmp_path_factory) -> Iterator[Shelf]:
    shelf = Shelf(tmp_path_factory.mktemp("shelf"))
    shelf.put("c1")
    yield shelf
    shelf.database.close()


def test_what_is_overwritten_is_gone_and_what_is_new_is_there_after_a_restart(shelf):
    shelf.put("c1")
    shelf.put("c2")
    for _ in range(2):
        assert shelf.checkpoints.find("tinker://me:train:0/weights/a", "me").id == "c2"
        assert not shelf.checkpoints.folder("c1").exists()
        with pytest.raises(NotFoundError, match="no longer stored"):
            shelf.checkpoints.get("c1")
        shelf.restart()
    assert shelf.removed == ["c1"]


def test_the_same_name_of_another_kind_is_another_checkpoint(shelf):
    shelf.put("c1", kind="weights")
    shelf.put("c2", kind="sampler_weights")
    assert {c.id for c in shelf.checkpoints.named("me")} == {"c1", "c2"}


def test_only_the_owner_finds_it_until_it_is_published(shelf):
    made = shelf.put("c1")
    path = made.tinker_path
    with pytest.raises(NotFoundError, match="not yours"):
        shelf.checkpoints.find(path, "you")
    asyncio.run(shelf.checkpoints.set_public(made, True))
    shelf.restart()
    found = shelf.checkpoints.find(path, "you")
    assert shelf.checkpoints.named("you") == []
    with pytest.raises(NotFoundError):  # to read is not to own
        shelf.checkpoints.owned(found.run_id, found.kind, found.name, "you")
    asyncio.run(shelf.checkpoints.set_public(found, False))
    with pytest.raises(NotFoundError):
        shelf.checkpoints.find(path, "you")


def test_what_expired_is_found_and_removed(shelf):
    made, kept = shelf.put("c1"), shelf.put("c2", "b")
    asyncio.run(shelf.checkpoints.set_expiry(made, 1))
    asyncio.run(shelf.checkpoints.set_expiry(kept, 1))
    asyncio.run(shelf.checkpoints.set_expiry(kept, None))
    assert shelf.checkpoints.next_expiry() == made.expires
    made.expires = time.time() - 1
    assert shelf.checkpoints.expired() == [made]
    asyncio.run(shelf.checkpoints.remove(shelf.checkpoints.expired()))
    assert shelf.checkpoints.expired() == []
    assert shelf.checkpoints.refs() == {"c2"}
    assert not shelf.checkpoints.folder("c1").exists()


def test_of_unnamed_snapshots_the_least_recently_used_go_first(shelf):
    for number in range(4):
        shelf.put(f"e{number}", f"s:{number}", EPHEMERAL, used=float(number))
    shelf.put("named", used=-1.0)

    def surplus(most_bytes, unused_since=1e9):
        return [c.id for c in shelf.checkpoints.surplus_ephemerals(most_bytes, unused_since)]

    assert surplus(40) == []
    assert surplus(39) == ["e0"]
    assert surplus(20) == ["e0", "e1"]
    assert surplus(0) == ["e0", "e1", "e2", "e3"]
    assert surplus(0, unused_since=1.5) == ["e0", "e1"]  # what is in use stays, whatever its size
    shelf.checkpoints.get("e0")
    assert surplus(39) == ["e1"]


def nothing(_: Connection) -> None:
    """Nothing else is written with it."""


def test_a_copy_is_whole_and_lives_on_without_its_source(shelf):
    source = shelf.put("c1")
    copied = replace(source, id="c2", run_id="you:train:0", owner="you", ref="checkpoints/c2")
    asyncio.run(shelf.checkpoints.copy(source, copied, nothing))
    asyncio.run(shelf.checkpoints.remove([source]))
    assert verify(shelf.checkpoints.folder("c2")) == {"weights": 2}
    assert shelf.checkpoints.find(copied.tinker_path, "you").size > 0


def test_a_damaged_checkpoint_is_not_copied(shelf):
    source = shelf.put("c1")
    (shelf.checkpoints.folder("c1") / "weights").write_text("xx")
    with pytest.raises(DamagedError):
        asyncio.run(shelf.checkpoints.copy(source, replace(source, id="c2", run_id="r"), nothing))
    assert not shelf.checkpoints.folder("c2").exists()
