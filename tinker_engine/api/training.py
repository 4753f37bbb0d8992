"""Training: every call is journalled and acknowledged; what it does, `retrieve_future` tells."""

import json
from typing import Any

from google.protobuf.message import DecodeError
from starlette.responses import Response

from tinker_engine.api.http import PROTOBUF, Call, accepted, answer
from tinker_engine.errors import InputError
from tinker_engine.wire import messages_pb2 as pb
from tinker_engine.wire.create_model import PARTS, read_create_model
from tinker_engine.wire.fields import Fields

ADAM = {"type": "adamw"}


async def create_model(call: Call) -> Response:
    fields = call.json()
    op = await call.engine.create_model(call.owner, read_create_model(fields), _identity(fields))
    return accepted(op, model_id=op.lane)


async def get_info(call: Call) -> Response:
    run = call.engine.training.find(call.json().text("model_id"), call.owner)
    model = {"arch": "llama", "model_name": run.base_model, "tokenizer_id": run.base_model}
    return answer(
        {
            "type": "get_info",
            "model_id": run.id,
            "model_data": model,
            "optimizer_config": ADAM,
            "is_lora": True,
            "lora_rank": run.lora["rank"],
            "model_name": run.base_model,
        }
    )


async def forward_backward(call: Call) -> Response:
    if call.request.headers.get("content-type", "").split(";")[0] != PROTOBUF:
        raise InputError("content-type", f"must be {PROTOBUF}; use tinker 0.25 or newer")
    header = _header(call.body)
    op = await call.engine.train(call.owner, header.model_id, header.seq_id, "forward_backward", call.body)
    return accepted(op, model_id=op.lane)


async def optim_step(call: Call) -> Response:
    fields = call.json()
    op = await call.engine.train(
        call.owner,
        fields.text("model_id"),
        _seq_id(fields),
        "optim_step",
        call.body,
        identity=_identity(fields),
    )
    return accepted(op, model_id=op.lane)


async def load_weights(call: Call) -> Response:
    fields = call.json()
    if not fields.has("model_id"):
        raise fields.error("model_id", "is missing; create the model first, then load into it")
    op = await call.engine.load_weights(
        call.owner,
        fields.text("model_id"),
        _seq_id(fields),
        fields.text("path"),
        optimizer=fields.flag("optimizer", False),
        identity=_identity(fields),
    )
    return accepted(op, model_id=op.lane)


async def save_weights(call: Call) -> Response:
    fields = call.json()
    op = await call.engine.save(
        call.owner,
        fields.text("model_id"),
        _seq_id(fields),
        "save_weights",
        "weights",
        fields.text("path"),
        ttl_seconds=fields.optional_integer("ttl_seconds"),
        overwrite=fields.flag("overwrite", False),
        user_metadata=_metadata(fields),
        identity=_identity(fields),
    )
    return accepted(op, model_id=op.lane)


async def save_weights_for_sampler(call: Call) -> Response:
    fields = call.json()
    name = fields.optional_text("path")
    op = await call.engine.save(
        call.owner,
        fields.text("model_id"),
        _seq_id(fields),
        "save_sampler",
        "sampler_weights",
        name,
        ttl_seconds=fields.optional_integer("ttl_seconds"),
        sampler=fields.integer("sampling_session_seq_id", least=0) if name is None else None,
        user_metadata=_metadata(fields),
        # A repeated request for an unnamed snapshot comes with another number for its sampling session.
        identity=_identity(fields, without=("sampling_session_seq_id",)),
    )
    return accepted(op, model_id=op.lane)


async def save_weights_external(call: Call) -> Response:
    fields = call.json()
    if fields.has("age_encryption_recipients"):
        raise fields.error("age_encryption_recipients", "is not supported: weights are saved as they are")
    op = await call.engine.save(
        call.owner,
        fields.text("model_id"),
        _seq_id(fields),
        "save_external",
        "external_weights",
        fields.text("path"),
        ttl_seconds=fields.optional_integer("ttl_seconds"),
        identity=_identity(fields),
    )
    return accepted(op, model_id=op.lane)


async def unload_model(call: Call) -> Response:
    fields = call.json()
    seq_id = fields.optional_integer("seq_id", least=1)
    op = await call.engine.unload(call.owner, fields.text("model_id"), seq_id)
    return accepted(op, model_id=op.lane)


async def create_custom_loss(call: Call) -> Response:
    raise InputError(
        "graph",
        "losses are not compiled on this server; pass the function to forward_backward_custom, which runs it in your "
        "own process",
    )


async def weights_info(call: Call) -> Response:
    found = call.engine.checkpoints.find(call.json().text("tinker_path"), call.owner, "tinker_path")
    return answer(
        {
            "base_model": found.base_model,
            "is_lora": True,
            "lora_rank": found.lora["rank"],
            **{name: found.lora[name] for name in PARTS},
            "optimizer_config": ADAM,
        }
    )


def _header(body: bytes) -> pb.ForwardBackwardHeader:
    """Whose request it is, without looking at the data."""
    header = pb.ForwardBackwardHeader()
    try:
        header.ParseFromString(body)
    except (DecodeError, UnicodeDecodeError) as error:
        raise InputError("body", f"is no forward_backward message, or was cut off: {error}") from error
    if not header.model_id:
        raise InputError("model_id", "is missing")
    if header.seq_id < 1:
        raise InputError("seq_id", f"must be at least 1, got {header.seq_id}")
    return header


def _metadata(fields: Fields) -> dict[str, Any] | None:
    metadata = fields.optional_nested("user_metadata")
    return dict(metadata.values) if metadata is not None else None


def _seq_id(fields: Fields) -> int:
    return fields.integer("seq_id", least=1)


def _identity(fields: Fields, without: tuple[str, ...] = ()) -> bytes:
    """The request without what differs between repetitions, in one spelling."""
    content = {name: value for name, value in fields.values.items() if name not in without}
    return json.dumps(content, sort_keys=True).encode()
