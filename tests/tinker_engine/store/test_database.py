"""The same promises on SQLite and on a real PostgreSQL."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace

import pytest
import sqlalchemy
from sqlalchemy import event, insert, select, text, update

from tinker_engine.core import journal
from tinker_engine.core.records import Op, Run, Session
from tinker_engine.core.settings import Settings
from tinker_engine.errors import LockedError, StorageError
from tinker_engine.store import schema
from tinker_engine.store.database import Database

Open = Callable[[], Database]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'engine.db'}"
        return
    url = request.getfixturevalue("postgres")
    yield url
    engine = sqlalchemy.create_engine(url)
    schema.metadata.drop_all(engine)
    engine.dispose()


@pytest.fixture
def database(url) -> Iterator[Database]:
    database = Database(url, durable=False)
    yield database
    database.close()


def put(name: str, value: str = ""):
    return lambda connection: connection.execute(insert(schema.meta).values(name=name, value=value)) and None


def names(connection) -> list[str]:
    return sorted(connection.scalars(select(schema.meta.c.name).where(schema.meta.c.name != "schema")))


class Hold:
    """A write that keeps the writer busy, so that what is submitted next is committed together."""

    def __init__(self, database: Database):
        self._release, self._begun = threading.Event(), threading.Event()
        self.done = database.submit(self._wait)
        assert self._begun.wait(30)

    def _wait(self, _):
        self._begun.set()
        assert self._release.wait(30)

    def release(self) -> None:
        self._release.set()
        self.done.result(30)


def test_writes_are_carried_out_in_order_of_submission(database):
    order: list[int] = []
    hold = Hold(database)
    done = [database.submit(lambda _, i=i: order.append(i)) for i in range(50)]
    finished: list[int] = []
    for i, future in enumerate(done):
        future.add_done_callback(lambda _, i=i: finished.append(i))
    assert order == []
    hold.release()
    done[-1].result(30)
    assert order == finished == list(range(50))


def test_what_waits_together_is_committed_together(database):
    commits: list[object] = []
    event.listen(database._engine, "commit", commits.append)
    hold = Hold(database)
    done = [database.submit(put(f"k{i}")) for i in range(20)]
    hold.release()
    done[-1].result(30)
    assert len(commits) == 1
    assert len(database.read_now(names)) == 20


def test_one_bad_write_of_a_batch_fails_alone(database):
    hold = Hold(database)
    before, bad = database.submit(put("a")), database.submit(put("a"))
    broken: Future[float] = database.submit(lambda _: 1 / 0)
    after = database.submit(put("b"))
    hold.release()
    before.result(30)
    after.result(30)
    with pytest.raises(StorageError, match="nothing was changed"):
        bad.result(30)
    with pytest.raises(ZeroDivisionError):
        broken.result(30)
    assert database.read_now(names) == ["a", "b"]


def test_a_file_that_cannot_be_written_is_a_storage_error_and_takes_the_row_back(database):
    def work(connection):
        put("a")(connection)
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match="No space left"):
        database.submit(work).result(30)
    assert database.read_now(names) == []


def test_whoever_stops_waiting_does_not_stop_the_writer(database):
    """A request that is cancelled while its write waits must not take the other writes along."""

    async def main() -> None:
        hold = Hold(database)
        waiting = asyncio.create_task(database.write(put("given up")))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        hold.release()
        await asyncio.wait_for(database.write(put("later")), 30)

    asyncio.run(main())
    assert database.read_now(names) == ["given up", "later"]


def test_reads_see_what_was_committed_and_nothing_else(database):
    inside, go_on = threading.Event(), threading.Event()

    def slow(connection):
        put("a")(connection)
        inside.set()
        assert go_on.wait(30)

    done = database.submit(slow)
    assert inside.wait(30)
    assert database.read_now(names) == []
    go_on.set()
    done.result(30)
    assert asyncio.run(database.read(names)) == ["a"]


def test_closing_waits_for_everything_submitted(url):
    database = Database(url, durable=True)
    hold = Hold(database)
    done = [database.submit(put(f"k{i}")) for i in range(10)]
    closing = threading.Thread(target=database.close)
    closing.start()
    hold.release()
    closing.join(30)
    assert all(future.done() for future in done)
    again = Database(url, durable=False)
    assert len(again.read_now(names)) == 10
    again.close()


def test_another_format_is_refused(url):
    database = Database(url, durable=False)
    database.submit(
        lambda c: (
            c.execute(update(schema.meta).where(schema.meta.c.name == "schema").values(value="99")) and None
        )
    ).result(30)
    database.close()
    with pytest.raises(StorageError, match="written in format 99"):
        Database(url, durable=False)


def test_a_read_that_fails_is_a_storage_error(database):
    with pytest.raises(StorageError, match="cannot be read"):
        database.read_now(lambda connection: connection.execute(text("SELECT nothing FROM nowhere")))


@pytest.mark.parametrize(("durable", "level"), [(True, 2), (False, 1)])
def test_sqlite_syncs_each_commit_only_if_durable(tmp_path, durable, level):
    database = Database(f"sqlite:///{tmp_path / 'engine.db'}", durable=durable)
    assert database.read_now(lambda c: c.execute(text("PRAGMA synchronous")).scalar()) == level
    assert database.read_now(lambda c: c.execute(text("PRAGMA journal_mode")).scalar()) == "wal"
    database.close()


@pytest.mark.parametrize("name", ["a?b=c", "a%20b", "a#b", "ü ß", "a:b@c"])
def test_the_database_is_in_the_data_directory_however_that_is_called(tmp_path, name):
    data = tmp_path / name
    data.mkdir()
    Database(Settings(data, {}, {}).database_url, durable=False).close()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (data / "engine.db").exists()


@pytest.mark.parametrize(
    "url", ["nonsense", "nonsense://", "postgresql+psycopg://me:secret@127.0.0.1:1/none"]
)
def test_an_unusable_database_is_named_without_its_password(url):
    with pytest.raises(StorageError) as error:
        Database(url, durable=False)
    assert "secret" not in str(error.value)


def test_two_engines_do_not_share_a_postgres(postgres, monkeypatch):
    monkeypatch.setattr("tinker_engine.store.database.CLAIM_SECONDS", 1)
    first = Database(postgres, durable=False)
    with pytest.raises(LockedError, match="another engine is using the database"):
        Database(postgres, durable=False)
    first.submit(put("still mine")).result(30)
    first.close()
    second = Database(postgres, durable=False)
    second.submit(lambda connection: schema.metadata.drop_all(connection)).result(30)
    second.close()


def test_the_writer_finds_a_postgres_that_dropped_its_connections(postgres):
    database = Database(postgres, durable=False)
    other = sqlalchemy.create_engine(postgres)
    try:
        database.submit(put("before")).result(30)
        with other.connect() as connection:
            connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE pid <> pg_backend_pid() AND datname = current_database()"
                )
            )
        with pytest.raises(StorageError):
            database.submit(put("lost")).result(30)
        database.submit(put("after")).result(30)
        assert "after" in database.submit(names).result(30)
    finally:
        database.close()
        schema.metadata.drop_all(other)
        other.dispose()


# --- the journal's statements, which must mean the same on both -------------------------------------------


def op(position: int, lane: str = "run", **changes) -> Op:
    made = Op(
        f"{lane}:{position}", position, lane, "me", "forward_backward", "d", b"\0body", None, {"a": 1}, 1.0
    )
    return replace(made, **changes)


def run(name: str = "run", saved: int = -1) -> Run:
    return Run(
        name, "s", "me", "m", {"rank": 4, "seed": 2**63 - 1}, 1 << 40, {"note": "\0ü"}, 1.0, 2.0, saved, None
    )


def test_records_come_back_as_they_were(database):
    session = Session("s", "me", 1.25, 2.5, None, {"tags": ["a", "\ud800"], "user_metadata": None})
    for record in (session, run()):
        database.submit(journal.add(record)).result(30)
    assert database.read_now(journal.load(Session)) == [session]
    assert database.read_now(journal.load(Run)) == [run()]


def test_an_answer_is_recorded_once(database):
    database.submit(journal.add_op(op(1))).result(30)
    for result in (b"first", b"second"):
        done = replace(op(1), status="done", result=result, finished=5.0)
        database.submit(journal.finish_op(done)).result(30)
    found = database.read_now(journal.find_op("run:1"))
    assert (found.result, found.status, found.body) == (b"first", "done", b"\0body")
    assert database.read_now(journal.unfinished_ops) == []


def test_a_replay_takes_what_moved_the_run_since_its_save(database):
    ops = [
        op(1),
        op(2, kind="optim_step"),  # up to here it is saved
        op(3),
        op(4, kind="save_weights"),
        op(5, kind="optim_step", status="failed"),
        op(6, kind="load_weights"),
        op(7, kind="create"),
        op(8, kind="unload"),
        op(9, lane="other"),
        op(10, status="accepted"),
    ]
    for each in ops:
        finished = replace(each, status="done") if each.position not in (5, 10) else each
        database.submit(journal.add_op(finished)).result(30)
    replayed = database.read_now(journal.replayable_ops(run(saved=2)))
    assert [(o.position, o.kind, o.status) for o in replayed] == [
        (3, "forward_backward", "done"),
        (5, "optim_step", "failed"),
        (6, "load_weights", "done"),
    ]


def test_a_save_moves_the_pointer_and_drops_only_older_bodies(database):
    database.submit(journal.add(run())).result(30)
    for each in (op(1, body_ref="1", body=None), op(2), op(3), op(2, lane="other")):
        changed = replace(each, status="done", position=each.position + (90 if each.lane == "other" else 0))
        database.submit(journal.add_op(changed)).result(30)
    moved = replace(run(), saved_position=2, saved_ref="autosaves/x")
    assert database.submit(journal.move_save(moved)).result(30) == ["1"]
    bodies = {
        name: database.read_now(journal.find_op(name)).body for name in ("run:1", "run:2", "run:3", "other:2")
    }
    assert bodies == {"run:1": None, "run:2": None, "run:3": b"\0body", "other:2": b"\0body"}
    assert database.read_now(journal.load(Run)) == [moved]


def test_old_answers_go_unless_a_replay_needs_them(database):
    database.submit(journal.add(run(saved=1))).result(30)
    ops = [
        op(1, status="done", finished=1.0, body=None, body_ref="1"),
        op(2, status="done", finished=1.0),  # not saved yet
        op(3),  # not answered yet
        op(4, lane="sampler", kind="sample", status="done", finished=1.0),
        op(5, lane="sampler", kind="sample", status="done", finished=9.0),
    ]
    for each in ops:
        database.submit(journal.add_op(each)).result(30)
        database.submit(
            lambda c, o=each: (
                c.execute(
                    update(schema.ops)
                    .where(schema.ops.c.request_id == o.request_id)
                    .values(finished=o.finished)
                )
                and None
            )
        ).result(30)
    assert database.submit(journal.drop_old_ops(5.0, 5.0)).result(30) == ["1"]
    left = sorted(request_id for _, request_id in database.read_now(journal.request_ids))
    assert left == ["run:2", "run:3", "sampler:5"]


def test_positions_go_on_beyond_those_of_forgotten_requests(database):
    """Else a run's new requests would lie before its last save, and a replay would leave them out."""
    database.submit(journal.add(run(saved=100))).result(30)
    assert database.read_now(journal.last_position) == 100
    database.submit(journal.add_op(op(101))).result(30)
    assert database.read_now(journal.last_position) == 101


def test_a_setting_keeps_its_first_value(database):
    assert [database.submit(journal.setting("x", value)).result(30) for value in ("1", "2")] == ["1", "1"]


def test_keys_that_are_no_longer_listed_are_forgotten(database):
    for owners in ({"d1": "a", "d2": "b"}, {"d2": "b"}):
        database.submit(journal.replace_keys(owners)).result(30)
    assert database.read_now(lambda c: [tuple(r) for r in c.execute(select(schema.keys))]) == [("d2", "b")]
