"""The tables. One row of `ops` is one accepted request: the journal from which everything else can be rebuilt."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

VERSION = 1

metadata = MetaData()

meta = Table(
    "meta", metadata, Column("name", String, primary_key=True), Column("value", Text, nullable=False)
)

keys = Table(
    "keys",
    metadata,
    Column("digest", String, primary_key=True),  # SHA-256 of the key; the key itself is kept nowhere
    Column("owner", String, nullable=False),
)

sessions = Table(
    "sessions",
    metadata,
    Column("id", String, primary_key=True),
    Column("owner", String, nullable=False, index=True),
    Column("created", Float, nullable=False),
    Column("seen", Float, nullable=False),
    Column("finished", Text),  # why, once it is
    Column(
        "details", Text, nullable=False
    ),  # JSON: tags, user_metadata, display_name, project_id, sdk_version
)

runs = Table(
    "runs",
    metadata,
    Column("id", String, primary_key=True),
    Column("session_id", String, nullable=False, index=True),
    Column("owner", String, nullable=False, index=True),
    Column("base_model", String, nullable=False),
    Column("lora", Text, nullable=False),  # JSON, with the seed that was drawn
    Column("room", BigInteger, nullable=False),  # bytes for activations: batches, and so bits, depend on it
    Column("user_metadata", Text),
    Column("created", Float, nullable=False),
    Column("used", Float, nullable=False),
    Column("saved_position", BigInteger, nullable=False),  # the journal up to here is in `saved_ref`
    Column("saved_ref", String),
    Column("corrupted", Text),  # why, if it is
)

ops = Table(
    "ops",
    metadata,
    Column("request_id", String, primary_key=True),
    Column("position", BigInteger, nullable=False, unique=True),  # order of arrival over all requests
    Column("lane", String, nullable=False),  # a run, or a sampling session
    Column("owner", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("digest", String, nullable=False),
    Column("body", LargeBinary),  # None once no replay can need it
    Column("body_ref", String),  # the file that holds a long body
    Column("options", Text, nullable=False),  # JSON: what was fixed when it was accepted
    Column("status", String, nullable=False),  # accepted, done, failed
    Column("attempts", Integer, nullable=False),
    Column("result", LargeBinary),
    Column("media_type", String),
    Column("category", String),  # of a failure: user, server
    Column("accepted", Float, nullable=False),
    Column("finished", Float),
    Index("ops_by_lane", "lane", "position"),
    Index("ops_by_status", "status", "finished"),
)

samplers = Table(
    "samplers",
    metadata,
    Column("id", String, primary_key=True),
    Column("session_id", String, nullable=False, index=True),
    Column("owner", String, nullable=False),
    Column("base_model", String, nullable=False),
    Column("model_path", String),  # as the client named it
    Column("snapshot", String),  # id of the checkpoint; None samples the base model
    Column("clones", Integer, nullable=False),
    Column("created", Float, nullable=False),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("id", String, primary_key=True),  # of this content: a name that is saved again gets another id
    Column("run_id", String, nullable=False, index=True),
    Column("kind", String, nullable=False),  # weights, sampler_weights, external_weights, ephemeral
    Column("name", String, nullable=False),
    Column("owner", String, nullable=False, index=True),
    Column("base_model", String, nullable=False),
    Column("lora", Text, nullable=False),
    Column("ref", String, nullable=False),  # its folder, below the data directory
    Column("size", BigInteger, nullable=False),
    Column("created", Float, nullable=False),
    Column("used", Float, nullable=False),
    Column("expires", Float),
    Column("public", Boolean, nullable=False),
    Column("user_metadata", Text),
    UniqueConstraint("run_id", "kind", "name"),
)
