"""The SDK's own encoders, and small requests to take apart."""

from collections.abc import Mapping, Sequence

from tinker import types
from tinker.proto.request_conv import forward_backward_request_to_proto
from tinker.types.forward_backward_request import ForwardBackwardRequest

from tinker_engine.training.types import Datum
from tinker_engine.wire import messages_pb2 as pb
from tinker_engine.wire.training import decode_forward_backward


def sdk_bytes(
    data: Sequence[types.Datum],
    loss_fn: str = "cross_entropy",
    config: Mapping[str, float | str] | None = None,
    *,
    forward_only: bool = False,
) -> bytes:
    """What the SDK posts to forward_backward."""
    content = types.ForwardBackwardInput(data=list(data), loss_fn=loss_fn, loss_fn_config=config)  # pyright: ignore[reportArgumentType]  # any string is sent
    message = forward_backward_request_to_proto(ForwardBackwardRequest(content, "s:train:0", 4))
    message.forward_only = forward_only
    return message.SerializeToString()


def sdk_datum(tokens: Sequence[int], **inputs: object) -> types.Datum:
    return types.Datum(types.ModelInput.from_ints(list(tokens)), inputs)  # pyright: ignore[reportArgumentType]


def request(*data: pb.Datum) -> bytes:
    """A request by our own messages, for what the SDK refuses to send."""
    return pb.ForwardBackwardRequest(
        model_id="m", seq_id=1, loss_fn="cross_entropy", data=data
    ).SerializeToString()


def text_chunk(*tokens: int) -> pb.Chunk:
    tokens_bytes = b"".join(token.to_bytes(4, "little", signed=True) for token in tokens)
    return pb.Chunk(encoded_text=pb.EncodedTextChunk(tokens=tokens_bytes))


def with_tensor(tensor: pb.Tensor) -> bytes:
    """Two datums; the tensor is the second one's weights."""
    fine = pb.Datum(model_input=[text_chunk(1, 2)])
    return request(fine, pb.Datum(model_input=[text_chunk(1, 2)], loss_fn_inputs={"weights": tensor}))


def decode_one(datum: types.Datum) -> Datum:
    (decoded,) = decode_forward_backward(sdk_bytes([datum])).data
    return decoded
