"""One database, one writer. Writes that wait together are committed together.

SQLite commits in 0.01 ms when only the process may die (`durable=False`: kill -9 loses nothing, a power cut may
lose the last commits) and in some milliseconds when each commit is synced to disk (`durable=True`). Sharing one
commit among all that arrived in the meantime makes the second affordable; the first is so short that handing it to
the writer's thread would cost more than doing it.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import sqlalchemy
from sqlalchemy import URL, Connection, event, func, insert, select, text
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from tinker_engine.errors import LockedError, StorageError
from tinker_engine.store import schema

T = TypeVar("T")
Work = Callable[[Connection], T]

READERS = 4
CLAIM = 0x74696E6B  # of an engine on a whole PostgreSQL database
CLAIM_SECONDS = 5


@dataclass
class _Write:
    work: Work[Any]
    done: "Future[Any]"


@dataclass
class _Outcome:
    done: "Future[Any]"
    result: Any
    error: Exception | None = None


class Database:
    def __init__(self, url: str | URL, *, durable: bool):
        """`url` as SQLAlchemy writes it: `sqlite:///path` or `postgresql+psycopg://user@host/name`."""
        self._engine = _connectable(url, durable)
        try:
            self._claim = _claim(self._engine)
            schema.metadata.create_all(self._engine)
            self._check_version()
        except SQLAlchemyError as error:
            raise StorageError(f"the database {_shown(url)} cannot be used: {_reason(error)}") from error
        self._short_commits = self._engine.dialect.name == "sqlite" and not durable
        self._connection = self._engine.connect()
        self._committing = threading.Lock()
        self._counting = threading.Lock()
        self._unwritten = 0  # writes in the queue or with the writer
        self._waiting: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="database-reader")
        self._writer = threading.Thread(target=self._write_forever, name="database-writer", daemon=True)
        self._writer.start()

    def submit(self, work: Work[T], *, short: bool = False) -> "Future[T]":
        """Run `work` in a transaction, in order of submission; the future is done once it is committed.

        `short` work may be done on the spot.
        """
        done: Future[T] = Future()
        done.set_running_or_notify_cancel()  # who waits may give up; what was submitted is written all the same
        write = _Write(work, done)
        if short and self._short_commits and self._write_here(write):
            return done
        self._count(1)
        self._waiting.put(write)
        return done

    async def write(self, work: Work[T], *, short: bool = False) -> T:
        done = self.submit(work, short=short)
        return done.result() if done.done() else await asyncio.wrap_future(done)

    async def read(self, work: Work[T]) -> T:
        return await asyncio.wrap_future(self._readers.submit(self._read, work))

    def read_now(self, work: Work[T]) -> T:
        """Blocks; for start-up."""
        return self._read(work)

    def close(self) -> None:
        """After everything that was submitted is committed."""
        self._waiting.put(None)
        self._writer.join()
        self._readers.shutdown()
        self._connection.close()
        if self._claim is not None:
            self._claim.close()
        self._engine.dispose()

    def _read(self, work: Work[T]) -> T:
        try:
            with self._engine.connect() as connection:
                return work(connection)
        except SQLAlchemyError as error:
            raise StorageError(f"the database cannot be read: {_reason(error)}") from error

    def _write_here(self, write: _Write) -> bool:
        """Whether it was: not if another write is on its way, which it must not overtake."""
        if not self._committing.acquire(blocking=False):
            return False
        try:
            if self._unwritten:
                return False
            outcomes = self._commit([write])
        finally:
            self._committing.release()
        _deliver(outcomes)
        return True

    def _write_forever(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch, last = self._also_waiting(first)
            with self._committing:
                outcomes = self._commit(batch)
                self._count(-len(batch))
            _deliver(outcomes)
            if last:
                return

    def _also_waiting(self, first: _Write) -> tuple[list[_Write], bool]:
        batch = [first]
        while True:
            try:
                following = self._waiting.get_nowait()
            except queue.Empty:
                return batch, False
            if following is None:
                return batch, True
            batch.append(following)

    def _count(self, change: int) -> None:
        with self._counting:
            self._unwritten += change

    def _commit(self, batch: list[_Write]) -> list[_Outcome]:
        """All in one transaction; if that fails, each in its own, so that one bad write fails alone."""
        connection = self._connection
        try:
            results = [write.work(connection) for write in batch]
            connection.commit()
        except Exception as error:  # the boundary: whatever it was belongs to whoever waits
            connection.rollback()
            if len(batch) > 1:
                return [outcome for write in batch for outcome in self._commit([write])]
            return [_Outcome(batch[0].done, None, _storage_error(error))]
        return [_Outcome(write.done, result) for write, result in zip(batch, results, strict=True)]

    def _check_version(self) -> None:
        with self._engine.begin() as connection:
            found = connection.scalar(select(schema.meta.c.value).where(schema.meta.c.name == "schema"))
            if found is None:
                connection.execute(insert(schema.meta).values(name="schema", value=str(schema.VERSION)))
            elif found != str(schema.VERSION):
                raise StorageError(
                    f"the data directory was written in format {found} and this version reads format "
                    f"{schema.VERSION}; use the version that wrote it, or another --data directory"
                )


def _deliver(outcomes: list[_Outcome]) -> None:
    """Without a lock held: whoever is told may write again."""
    for outcome in outcomes:
        if outcome.error is None:
            outcome.done.set_result(outcome.result)
        else:
            outcome.done.set_exception(outcome.error)


def _connectable(url: str | URL, durable: bool) -> sqlalchemy.Engine:
    try:
        engine = sqlalchemy.create_engine(url, pool_size=READERS + 1)
    except (SQLAlchemyError, ModuleNotFoundError) as error:
        raise StorageError(
            f"no database can be opened with {_shown(url)}: {error}. For PostgreSQL install the extra "
            "`postgres` and write postgresql+psycopg://USER@HOST/NAME"
        ) from error
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "connect")
        def _prepare(connection: Any, _: object) -> None:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            connection.execute("PRAGMA busy_timeout = 10000")

    return engine


def _claim(engine: sqlalchemy.Engine) -> Connection | None:
    """A server's database may be named on two machines: the first has it, for as long as its connection lives."""
    if engine.dialect.name != "postgresql":
        return None  # a file lies in a data directory, which is locked
    connection = engine.connect()
    connection.detach()
    try:
        connection.execute(
            text(f"SET lock_timeout = '{CLAIM_SECONDS}s'")
        )  # a predecessor may be about to end
        connection.execute(select(func.pg_advisory_lock(CLAIM)))
        connection.commit()
    except OperationalError as error:
        connection.close()
        raise LockedError(
            f"another engine is using the database {_shown(engine.url)}; stop it, or give this one its own"
        ) from error
    return connection


def _storage_error(error: Exception) -> Exception:
    if isinstance(error, SQLAlchemyError):
        return StorageError(f"nothing was changed, because the database refused it: {_reason(error)}")
    if isinstance(error, OSError):
        return StorageError(f"nothing was changed, because a file could not be written: {error}")
    return error


def _reason(error: SQLAlchemyError) -> str:
    return str(getattr(error, "orig", None) or error)


def _shown(url: str | URL) -> str:
    """Without a password."""
    try:
        return sqlalchemy.make_url(url).render_as_string(hide_password=True)
    except SQLAlchemyError:
        return str(url)
