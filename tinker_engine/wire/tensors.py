"""Arrays on the wire: little-endian bytes with a dtype and a shape, dense or as CSR.

Loss inputs arrive as `Tensor` messages; `target_prompt_logprobs` arrives as the same thing in JSON
(`data`, `dtype`, `shape`, `sparse_crow_indices`, `sparse_col_indices`) and is answered by a message.
Decoded arrays are copies in the machine's byte order: they outlive the request and may be written to.
"""

import math
from collections.abc import Sequence

import numpy as np

from tinker_engine.errors import InputError
from tinker_engine.training.types import CsrMatrix
from tinker_engine.wire import messages_pb2 as pb

# A CSR matrix is made dense before it is used, and a few bytes can describe one of any size.
MOST_CELLS = 1 << 25

_ON_WIRE: dict[int, np.dtype] = {
    pb.DTYPE_FLOAT32: np.dtype("<f4"),
    pb.DTYPE_INT64: np.dtype("<i8"),
    pb.DTYPE_INT32: np.dtype("<i4"),
    pb.DTYPE_BFLOAT16: np.dtype("<u2"),
}
_NAMES: dict[int, str] = {
    pb.DTYPE_FLOAT32: "float32",
    pb.DTYPE_INT64: "int64",
    pb.DTYPE_INT32: "int32",
    pb.DTYPE_BFLOAT16: "bfloat16",
}


def decode_tensor(tensor: pb.Tensor, where: str) -> np.ndarray | CsrMatrix:
    """float32 or int64, in the shape the caller gave it."""
    kind = tensor.WhichOneof("encoding")
    if kind == "dense":
        return shaped(_numbers(tensor.dense, tensor.dtype, where), tuple(tensor.shape), where)
    if kind == "sparse_csr":
        csr = tensor.sparse_csr
        matrix = CsrMatrix(
            values=_numbers(csr.values, tensor.dtype, where),
            row_starts=_numbers(csr.crow_indices, pb.DTYPE_INT64, f"{where}.crow_indices"),
            columns=_numbers(csr.col_indices, pb.DTYPE_INT64, f"{where}.col_indices"),
            shape=matrix_shape(tensor.shape, where),
        )
        check_csr(matrix, where)
        return matrix
    raise InputError(where, "holds no data, neither dense nor CSR")


def encode_floats(array: np.ndarray, csr: CsrMatrix | None = None) -> pb.Tensor:
    """A float32 tensor; with `csr`, only the cells that it lists, in its layout."""
    tensor = pb.Tensor(dtype=pb.DTYPE_FLOAT32, shape=array.shape)
    if csr is None:
        tensor.dense = float32_bytes(array)
    else:
        tensor.sparse_csr.values = float32_bytes(array[csr_rows(csr), csr.columns])
        tensor.sparse_csr.crow_indices = int64_bytes(csr.row_starts)
        tensor.sparse_csr.col_indices = int64_bytes(csr.columns)
    return tensor


def encode_tokens(array: np.ndarray) -> pb.Tensor:
    return pb.Tensor(dtype=pb.DTYPE_INT32, shape=array.shape, dense=int32_bytes(array))


def decode_int32(data: bytes, where: str) -> np.ndarray:
    """Token ids, which are int64 everywhere but on the wire."""
    return _numbers(data, pb.DTYPE_INT32, where)


def float32_bytes(array: Sequence[float] | Sequence[float | None] | np.ndarray) -> bytes:
    """None becomes NaN."""
    return np.asarray(array, dtype="<f4").tobytes()


def int32_bytes(array: Sequence[int] | np.ndarray) -> bytes:
    return np.asarray(array, dtype="<i4").tobytes()


def int64_bytes(array: Sequence[int] | np.ndarray) -> bytes:
    return np.asarray(array, dtype="<i8").tobytes()


def csr_rows(csr: CsrMatrix) -> np.ndarray:
    """The row of every listed cell."""
    return np.repeat(np.arange(csr.shape[0]), np.diff(csr.row_starts))


def densify(csr: CsrMatrix, fill: int) -> np.ndarray:
    dense = np.full(csr.shape, fill, dtype=csr.values.dtype)
    dense[csr_rows(csr), csr.columns] = csr.values
    return dense


def check_csr(csr: CsrMatrix, where: str) -> None:
    rows, width = csr.shape
    starts, columns, values = csr.row_starts, csr.columns, csr.values
    if len(columns) != len(values):
        raise InputError(where, f"has {len(columns)} column indices for {len(values)} values")
    if len(starts) != rows + 1:
        raise InputError(where, f"has {len(starts)} row pointers; {rows} rows need {rows + 1}")
    if starts[0] != 0 or starts[-1] != len(values) or bool((np.diff(starts) < 0).any()):
        raise InputError(where, f"row pointers must climb from 0 to the number of values, {len(values)}")
    if max(rows, 1) * width > MOST_CELLS:
        raise InputError(where, f"has shape [{rows}, {width}]; at most {MOST_CELLS} cells are accepted")
    if len(columns) == 0:
        return
    if columns.min() < 0 or columns.max() >= width:
        raise InputError(where, f"column indices must lie in 0..{width - 1}")
    climbs = np.diff(columns) > 0
    inner = starts[1:-1]
    climbs[inner[(inner > 0) & (inner < len(columns))] - 1] = True  # a new row starts anew
    if not climbs.all():
        raise InputError(where, "column indices must climb within a row, each at most once")


def shaped(flat: np.ndarray, shape: tuple[int, ...], where: str) -> np.ndarray:
    if not shape:
        return flat
    if min(shape) < 0 or math.prod(shape) != len(flat):
        raise InputError(where, f"has {len(flat)} elements, which do not fill the shape {list(shape[:8])}")
    try:
        return flat.reshape(shape)
    except ValueError as error:  # too many axes, or an empty array with an axis beyond all bounds
        raise InputError(where, f"cannot have {len(shape)} axes of these lengths: {error}") from error


def matrix_shape(shape: Sequence[int], where: str) -> tuple[int, int]:
    if len(shape) != 2 or min(shape) < 0:
        raise InputError(where, f"is CSR and needs a shape [rows, columns], got {list(shape[:8])}")
    return shape[0], shape[1]


def _numbers(data: bytes, dtype: int, where: str) -> np.ndarray:
    """A flat float32 or int64 array."""
    on_wire = _ON_WIRE.get(dtype)
    if on_wire is None:
        known = ", ".join(_NAMES.values())
        raise InputError(where, f"has dtype {dtype}, which is none of {known}" if dtype else "has no dtype")
    if len(data) % on_wire.itemsize:
        raise InputError(
            where,
            f"has {len(data)} bytes, which is no whole number of {_NAMES[dtype]} ({on_wire.itemsize} bytes each)",
        )
    raw = np.frombuffer(data, dtype=on_wire)
    if dtype == pb.DTYPE_BFLOAT16:  # the upper half of a float32
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float32 if dtype == pb.DTYPE_FLOAT32 else np.int64)
