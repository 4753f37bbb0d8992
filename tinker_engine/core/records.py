"""What the engine knows, in memory as in the database."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any, Literal

from sqlalchemy import Row

from tinker_engine.backends.messages import TrainKind

OpKind = TrainKind | Literal["sample", "unload"]
Status = Literal["accepted", "done", "failed"]
Category = Literal["user", "server"]
Lora = dict[str, int | bool | None]


@dataclass
class Session:
    id: str
    owner: str
    created: float
    seen: float
    finished: str | None
    details: dict[str, Any]


@dataclass
class Run:
    id: str
    session_id: str
    owner: str
    base_model: str
    lora: Lora
    room: int
    user_metadata: dict[str, Any] | None
    created: float
    used: float
    saved_position: int = -1
    saved_ref: str | None = None
    corrupted: str | None = None


@dataclass
class Sampler:
    """A sampling session: a base model, or one snapshot on it for ever."""

    id: str
    session_id: str
    owner: str
    base_model: str
    model_path: str | None
    snapshot: str | None
    clones: int
    created: float


@dataclass
class Checkpoint:
    id: str
    run_id: str
    kind: str
    name: str
    owner: str
    base_model: str
    lora: Lora
    ref: str
    size: int
    created: float
    used: float
    expires: float | None
    public: bool
    user_metadata: dict[str, Any] | None

    @property
    def tinker_path(self) -> str:
        return f"tinker://{self.run_id}/{self.kind}/{self.name}"


@dataclass(eq=False)
class Op:
    """An accepted request and, in time, its answer."""

    request_id: str
    position: int
    lane: str  # a run, or a sampling session
    owner: str
    kind: OpKind
    digest: str
    body: bytes | None
    body_ref: str | None
    options: dict[str, Any]
    accepted: float
    status: Status = "accepted"
    attempts: int = 0
    result: bytes | None = None  # of a failure: the message
    media_type: str | None = None
    category: Category | None = None
    finished: float | None = None
    size: int = 0  # of its body, as long as it counts against its owner's limit
    journalled: "asyncio.Future[None] | None" = None  # None once it is in the database
    settled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def done(self) -> bool:
        return self.status != "accepted"


def op_from_row(row: Row[Any]) -> Op:
    op = Op(
        row.request_id,
        row.position,
        row.lane,
        row.owner,
        row.kind,
        row.digest,
        row.body,
        row.body_ref,
        json.loads(row.options),
        row.accepted,
        row.status,
        row.attempts,
        row.result,
        row.media_type,
        row.category,
        row.finished,
    )
    if op.done:
        op.settled.set()
    return op
