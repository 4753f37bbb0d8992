"""Whatever arrives, `InputError` is all that comes out, and it says which datum and which field."""

import random
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tinker_engine.wire.support import request, sdk_bytes, sdk_datum, text_chunk, with_tensor
from tinker_engine.errors import InputError
from tinker_engine.wire import messages_pb2 as pb
from tinker_engine.wire.tensors import MOST_CELLS
from tinker_engine.wire.training import decode_forward_backward

WEIGHTS = "data[1].loss_fn_inputs['weights']"


def dense(values: list[float], dtype: int = pb.DTYPE_FLOAT32, shape: list[int] | None = None) -> pb.Tensor:
    return pb.Tensor(dense=np.array(values, np.float32).tobytes(), dtype=dtype, shape=shape or [])  # pyright: ignore[reportArgumentType]


def csr(values: int, starts: list[int], columns: list[int], shape: list[int]) -> pb.Tensor:
    return pb.Tensor(
        dtype=pb.DTYPE_FLOAT32,
        shape=shape,
        sparse_csr=pb.SparseCsr(
            values=np.ones(values, np.float32).tobytes(),
            crow_indices=np.array(starts, np.int64).tobytes(),
            col_indices=np.array(columns, np.int64).tobytes(),
        ),
    )


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        (pb.Tensor(dtype=pb.DTYPE_FLOAT32, shape=[2]), "holds no data"),
        (dense([1, 2], pb.DTYPE_UNSPECIFIED), "has no dtype"),
        (dense([1, 2], 9), "dtype 9"),
        (dense([1, 2, 3], pb.DTYPE_INT64), "12 bytes, which is no whole number of int64"),
        (pb.Tensor(dense=b"12345", dtype=pb.DTYPE_FLOAT32), "no whole number of float32"),
        (pb.Tensor(dense=b"123", dtype=pb.DTYPE_BFLOAT16), "no whole number of bfloat16"),
        (dense([1, 2], shape=[3]), r"2 elements, which do not fill the shape \[3\]"),
        (dense([1, 2], shape=[-1, -2]), "do not fill"),
        (dense([1, 2], shape=[2] + [1] * 99), "100 axes"),
        (dense([], shape=[0, 2**62]), "2 axes"),
        (csr(2, [0, 1, 2], [0, 1], [2]), "needs a shape"),
        (csr(2, [0, 1, 2], [0, 1], [2, -2]), "needs a shape"),
        (csr(2, [0, 1, 2], [0], [2, 2]), "1 column indices for 2 values"),
        (csr(2, [0, 2], [0, 1], [2, 2]), "2 row pointers; 2 rows need 3"),
        (csr(2, [], [0, 1], [0, 2]), "0 row pointers"),
        (csr(2, [0, 3, 2], [0, 1], [2, 2]), "must climb"),
        (csr(2, [1, 1, 2], [0, 1], [2, 2]), "must climb"),
        (csr(2, [0, 1, 1], [0, 1], [2, 2]), "must climb"),
        (csr(2, [0, 1, 2], [0, 2], [2, 2]), r"must lie in 0\.\.1"),
        (csr(2, [0, 1, 2], [0, -1], [2, 2]), r"must lie in 0\.\.1"),
        (csr(3, [0, 1, 3], [0, 1, 1], [2, 2]), "climb within a row"),
        (csr(3, [0, 2, 3], [1, 0, 0], [2, 2]), "climb within a row"),
        (csr(1, [0, 1], [0], [1, MOST_CELLS + 1]), "cells"),
        (csr(0, [0], [], [0, 2**62]), "cells"),
    ],
)
def test_a_bad_tensor_is_refused_by_name(tensor: pb.Tensor, says: str):
    with pytest.raises(InputError, match=says) as caught:
        decode_forward_backward(with_tensor(tensor))
    assert caught.value.field.startswith(WEIGHTS)


def test_rows_of_a_csr_matrix_may_be_empty():
    call = decode_forward_backward(with_tensor(csr(3, [0, 0, 2, 2, 3, 3], [1, 2, 0], [5, 3])))
    assert len(call.data) == 2


def test_int32_and_bfloat16_are_widened():
    ints = pb.Tensor(dense=np.array([1, -2], np.int32).tobytes(), dtype=pb.DTYPE_INT32)
    halves = pb.Tensor(dense=b"\x80\x3f\x00\xc0", dtype=pb.DTYPE_BFLOAT16)
    for tensor, expected in (
        (ints, np.array([1, -2], np.int64)),
        (halves, np.array([1.0, -2.0], np.float32)),
    ):
        value = decode_forward_backward(with_tensor(tensor)).data[1].loss_fn_inputs["weights"]
        assert isinstance(value, np.ndarray)
        assert value.dtype == expected.dtype
        np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize(
    ("chunk", "field", "says"),
    [
        (pb.Chunk(image=pb.ImageChunk(data=b"x", format="png")), "", "not images"),
        (pb.Chunk(dmel=pb.DmelChunk(dmel=b"x")), "", "not audio"),
        (pb.Chunk(), "", "unknown kind"),
        (pb.Chunk(encoded_text=pb.EncodedTextChunk(tokens=b"12345")), ".tokens", "no whole number of int32"),
    ],
)
def test_a_bad_chunk_is_refused_by_name(chunk: pb.Chunk, field: str, says: str):
    body = request(pb.Datum(model_input=[text_chunk(1)]), pb.Datum(model_input=[text_chunk(1), chunk]))
    with pytest.raises(InputError, match=says) as caught:
        decode_forward_backward(body)
    assert caught.value.field == f"data[1].model_input[1]{field}"


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.ForwardBackwardRequest(seq_id=1, loss_fn="ppo"), "model_id"),
        (pb.ForwardBackwardRequest(model_id="m", seq_id=1), "loss_fn"),
        (pb.ForwardBackwardRequest(model_id="m", loss_fn="ppo"), "seq_id"),
        (pb.ForwardBackwardRequest(model_id="m", loss_fn="ppo", seq_id=-3), "seq_id"),
        (
            pb.ForwardBackwardRequest(
                model_id="m", loss_fn="ppo", seq_id=1, loss_fn_config_v2={"beta": pb.LossConfigValue()}
            ),
            "loss_fn_config['beta']",
        ),
    ],
)
def test_a_bad_head_is_refused_by_name(message: pb.ForwardBackwardRequest, field: str):
    with pytest.raises(InputError) as caught:
        decode_forward_backward(message.SerializeToString())
    assert caught.value.field == field


VALID = sdk_bytes(
    [
        sdk_datum([1, 2, 3], target_tokens=[2, 3, 4], weights=[0.0, 1.0, 1.0]),
        sdk_datum([1, 2], target_tokens=np.eye(2, 9, dtype=np.int64), weights=np.eye(2, 9, dtype=np.float32)),
    ],
    "cross_entropy",
    {"beta": 0.5, "text": "x"},
)


def test_a_cut_request_never_loses_data():
    """Protobuf may end between any two fields, but loss_fn comes after the data and no request is without."""
    for end in range(len(VALID)):
        with suppress(InputError):
            assert len(decode_forward_backward(VALID[:end]).data) == 2


def test_mutated_requests_are_read_or_refused():
    rng = random.Random(0)
    for _ in range(3000):
        body = bytearray(VALID)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(body))
            match rng.randrange(3):
                case 0:
                    body[at] = rng.randrange(256)
                case 1:
                    del body[at : at + rng.randint(1, 9)]
                case _:
                    body[at:at] = rng.randbytes(rng.randint(1, 9))
        with suppress(InputError):
            decode_forward_backward(bytes(body))


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_read_or_refused(body: bytes):
    with suppress(InputError):
        decode_forward_backward(body)
