"""forward_backward: request bytes → data, results → answer bytes.

A request is one protobuf message: per datum its tokens as int32 bytes (in one or more chunks) and its loss
inputs as named tensors. `forward` is the same request with `forward_only`. Where the tokens came from
(`model_input_spans`, `loss_fn_input_spans`) is read over: only the stable_reinforce loss asks for it, and the
engine does not have that loss.

An answer holds, per run of datums with the same width K, one record with all their logprobs end to end and
the byte offset at which each datum begins. Metrics are plain numbers; the SDK needs exactly one colon in each
name ("loss:sum").
"""

from dataclasses import dataclass
from itertools import groupby

import numpy as np
from google.protobuf.message import DecodeError

from tinker_engine.errors import InputError
from tinker_engine.training.types import Datum, ForwardBackwardOutput
from tinker_engine.wire import messages_pb2 as pb
from tinker_engine.wire.chunks import decode_chunks
from tinker_engine.wire.fields import short
from tinker_engine.wire.tensors import decode_tensor, float32_bytes, int64_bytes

OUTPUT_TYPE = "ArrayRecord"


@dataclass(frozen=True)
class ForwardBackwardCall:
    model_id: str
    seq_id: int  # counts from 1 per model
    data: list[Datum]
    loss_fn: str
    loss_fn_config: dict[str, float | str] | None
    forward_only: bool


def decode_forward_backward(body: bytes) -> ForwardBackwardCall:
    message = pb.ForwardBackwardRequest()
    try:
        message.ParseFromString(body)
    except (DecodeError, UnicodeDecodeError) as error:
        raise InputError("body", f"is no forward_backward message, or was cut off: {error}") from error
    for name in ("model_id", "loss_fn"):
        if not getattr(message, name):
            raise InputError(name, "is missing")
    if message.seq_id < 1:
        raise InputError("seq_id", f"must be at least 1, got {message.seq_id}")
    return ForwardBackwardCall(
        model_id=message.model_id,
        seq_id=message.seq_id,
        data=[_datum(datum, f"data[{i}]") for i, datum in enumerate(message.data)],
        loss_fn=message.loss_fn,
        loss_fn_config=_loss_fn_config(message),
        forward_only=message.forward_only,
    )


def encode_forward_backward(output: ForwardBackwardOutput) -> bytes:
    arrays = [logprobs.detach().float().cpu().numpy() for logprobs in output.logprobs]
    message = pb.ForwardBackwardOutput(loss_fn_output_type=OUTPUT_TYPE, metrics=output.metrics)
    for trailing_shape, run in groupby(arrays, key=lambda array: array.shape[1:]):
        same_width = list(run)
        record = message.loss_fn_outputs.add(type_tag=OUTPUT_TYPE, num_datums=len(same_width))
        record.fields["logprobs"].CopyFrom(_batched(same_width, trailing_shape))
    return message.SerializeToString()


def _datum(message: pb.Datum, where: str) -> Datum:
    inputs = message.loss_fn_inputs
    return Datum(
        tokens=decode_chunks(message.model_input, f"{where}.model_input"),
        # Sorted, because the order of a protobuf map is accidental.
        loss_fn_inputs={
            name: decode_tensor(inputs[name], f"{where}.loss_fn_inputs[{short(name)}]")
            for name in sorted(inputs)
        },
    )


def _loss_fn_config(message: pb.ForwardBackwardRequest) -> dict[str, float | str] | None:
    """The SDK writes numbers to both maps and texts only to the second, which therefore wins."""
    if not message.loss_fn_config_v2:
        return dict(message.loss_fn_config) or None
    config: dict[str, float | str] = {}
    for name in sorted(message.loss_fn_config_v2):
        value = message.loss_fn_config_v2[name]
        kind = value.WhichOneof("value")
        if kind is None:
            raise InputError(f"loss_fn_config[{short(name)}]", "has no value; a number or a text is needed")
        config[name] = value.number if kind == "number" else value.text
    return config


def _batched(arrays: list[np.ndarray], trailing_shape: tuple[int, ...]) -> pb.BatchedTensor:
    parts = [float32_bytes(array) for array in arrays]
    return pb.BatchedTensor(
        data=b"".join(parts),
        offsets=int64_bytes(np.cumsum([0, *map(len, parts)])),
        dtype=pb.DTYPE_FLOAT32,
        trailing_shape=trailing_shape,
    )
