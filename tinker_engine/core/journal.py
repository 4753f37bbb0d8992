"""Every statement the engine runs on its database, as functions of a connection.

The order of commits is the order in which they were submitted, so a result is never recorded before the request
it answers, nor a checkpoint's row before its folder is whole.
"""

import json
from dataclasses import asdict
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, Row, Select, Table, bindparam, delete, func, insert, select, update

from tinker_engine.core.records import Checkpoint, Op, Run, Sampler, Session, op_from_row
from tinker_engine.store import schema
from tinker_engine.store.database import Work

_JSON = ("details", "lora", "user_metadata")
REPLAYED = ("forward_backward", "optim_step", "load_weights")

RecordT = TypeVar("RecordT", Session, Run, Sampler, Checkpoint)


# Built once: these two are on the path of every request.
_ADD_OP = insert(schema.ops)
_FINISH_OP = (
    update(schema.ops)
    .where(schema.ops.c.request_id == bindparam("id"), schema.ops.c.status == "accepted")
    .values(
        status=bindparam("new_status"),
        result=bindparam("result"),
        media_type=bindparam("media_type"),
        category=bindparam("category"),
        finished=bindparam("finished"),
    )
)
_FINISH_SAMPLE = _FINISH_OP.values(body=None)  # which no replay ever needs


# --- requests --------------------------------------------------------------------------------------------


def add_op(op: Op) -> Work[None]:
    values = {
        "request_id": op.request_id,
        "position": op.position,
        "lane": op.lane,
        "owner": op.owner,
        "kind": op.kind,
        "digest": op.digest,
        "body": None if op.body_ref else op.body,
        "body_ref": op.body_ref,
        "options": json.dumps(op.options),
        "status": op.status,
        "attempts": op.attempts,
        "accepted": op.accepted,
    }
    return lambda connection: _run(connection, _ADD_OP, values)


def finish_op(op: Op) -> Work[None]:
    """Record an answer, once: a second one for the same request changes nothing."""
    values = {
        "id": op.request_id,
        "new_status": op.status,
        "result": op.result,
        "media_type": op.media_type,
        "category": op.category,
        "finished": op.finished,
    }
    statement = _FINISH_SAMPLE if op.kind == "sample" else _FINISH_OP
    return lambda connection: _run(connection, statement, values)


def count_attempts(ops: list[Op]) -> Work[None]:
    def work(connection: Connection) -> None:
        for op in ops:
            _run(
                connection,
                update(schema.ops)
                .where(schema.ops.c.request_id == op.request_id)
                .values(attempts=op.attempts),
            )

    return work


def find_op(request_id: str) -> Work[Op | None]:
    def work(connection: Connection) -> Op | None:
        row = connection.execute(select(schema.ops).where(schema.ops.c.request_id == request_id)).first()
        return op_from_row(row) if row is not None else None

    return work


def unfinished_ops(connection: Connection) -> list[Op]:
    query = select(schema.ops).where(schema.ops.c.status == "accepted").order_by(schema.ops.c.position)
    return [op_from_row(row) for row in connection.execute(query)]


def replayable_ops(run: Run) -> Work[list[Op]]:
    """What happened to the run since it was saved, in order."""
    ops = schema.ops.c
    query = (
        select(schema.ops)
        .where(ops.lane == run.id, ops.position > run.saved_position, ops.status != "accepted")
        .where(ops.kind.in_(REPLAYED))
        .order_by(ops.position)
    )
    return lambda connection: [op_from_row(row) for row in connection.execute(query)]


def body_refs(connection: Connection) -> set[str]:
    query = select(schema.ops.c.body_ref).where(schema.ops.c.body_ref.is_not(None))
    return set(connection.scalars(query))


def last_position(connection: Connection) -> int:
    """Also of requests that are forgotten but whose effect is saved: a run's saves and requests are compared by it."""
    queries = select(func.max(schema.ops.c.position)), select(func.max(schema.runs.c.saved_position))
    return max(0, *(connection.scalar(query) or 0 for query in queries))


def drop_old_ops(before: float, samples_before: float) -> Work[list[str]]:
    """Forget answers nobody will fetch any more; the files of bodies that went with them."""

    def work(connection: Connection) -> list[str]:
        ops, runs = schema.ops.c, schema.runs.c
        saved = select(runs.saved_position).where(runs.id == ops.lane).scalar_subquery()
        sample = (ops.kind == "sample") & (ops.finished < samples_before)
        training = (
            (ops.kind != "sample") & (ops.finished < before) & (ops.position <= func.coalesce(saved, -1))
        )
        gone = (ops.status != "accepted") & (sample | training)
        refs = [
            row.body_ref
            for row in connection.execute(select(ops.body_ref).where(gone, ops.body_ref.is_not(None)))
        ]
        connection.execute(delete(schema.ops).where(gone))
        return refs

    return work


# --- runs ------------------------------------------------------------------------------------------------


def move_save(run: Run) -> Work[list[str]]:
    """The run's past is in `saved_ref` now: its bodies are not needed any more; the files that held some."""

    def work(connection: Connection) -> list[str]:
        ops = schema.ops.c
        past = (ops.lane == run.id) & (ops.position <= run.saved_position) & (ops.status != "accepted")
        refs = [
            row.body_ref
            for row in connection.execute(select(ops.body_ref).where(past, ops.body_ref.is_not(None)))
        ]
        _run(connection, update(schema.ops).where(past).values(body=None, body_ref=None))
        _run(
            connection,
            update(schema.runs)
            .where(schema.runs.c.id == run.id)
            .values(saved_position=run.saved_position, saved_ref=run.saved_ref, used=run.used),
        )
        return refs

    return work


# --- records that are held in memory as well -------------------------------------------------------------

_TABLES: dict[type, Table] = {
    Session: schema.sessions,
    Run: schema.runs,
    Sampler: schema.samplers,
    Checkpoint: schema.checkpoints,
}


def add(record: Session | Run | Sampler | Checkpoint) -> Work[None]:
    return lambda connection: _run(connection, insert(_TABLES[type(record)]), _values(record))


def store(record: Session | Run | Sampler | Checkpoint) -> Work[None]:
    """Write all of a record that is there already."""
    table = _TABLES[type(record)]
    return lambda connection: _run(
        connection, update(table).where(table.c.id == record.id).values(_values(record))
    )


def remove(record: Sampler | Checkpoint | Run) -> Work[None]:
    table = _TABLES[type(record)]
    return lambda connection: _run(connection, delete(table).where(table.c.id == record.id))


def load(kind: type[RecordT]) -> Work[list[RecordT]]:
    query: Select[Any] = select(_TABLES[kind])

    def work(connection: Connection) -> list[RecordT]:
        return [cast(RecordT, kind(**_fields(row))) for row in connection.execute(query)]

    return work


def request_ids(connection: Connection) -> list[tuple[str, str]]:
    """(lane, request id) of all requests that are remembered."""
    return [
        (row.lane, row.request_id)
        for row in connection.execute(select(schema.ops.c.lane, schema.ops.c.request_id))
    ]


def together(*parts: Work[Any]) -> Work[None]:
    """Several writes that are committed all or none."""

    def work(connection: Connection) -> None:
        for part in parts:
            part(connection)

    return work


# --- settings that belong to the data directory -----------------------------------------------------------


def setting(name: str, default: str) -> Work[str]:
    """The stored value; `default` becomes it the first time."""

    def work(connection: Connection) -> str:
        found = connection.scalar(select(schema.meta.c.value).where(schema.meta.c.name == name))
        if found is None:
            _run(connection, insert(schema.meta), {"name": name, "value": default})
        return default if found is None else found

    return work


def replace_keys(owners: dict[str, str]) -> Work[None]:
    """`owners` by the digest of their key; keys that are no longer listed stop working."""

    def work(connection: Connection) -> None:
        connection.execute(delete(schema.keys))
        for digest, owner in owners.items():
            _run(connection, insert(schema.keys), {"digest": digest, "owner": owner})

    return work


def _values(record: Session | Run | Sampler | Checkpoint) -> dict[str, Any]:
    values = asdict(record)
    for name in _JSON:
        if values.get(name) is not None:
            values[name] = json.dumps(values[name])
    return values


def _fields(row: Row[Any]) -> dict[str, Any]:
    fields = dict(row._mapping)
    for name in _JSON:
        if fields.get(name) is not None:
            fields[name] = json.loads(fields[name])
    return fields


def _run(connection: Connection, statement: Any, values: dict[str, Any] | None = None) -> None:
    connection.execute(statement, values) if values is not None else connection.execute(statement)
