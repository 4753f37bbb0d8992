"""Turn a caller's data into `Example`s, or refuse it with one sentence. Nothing is computed before this."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from tinker_engine.errors import InputError
from tinker_engine.model.spec import ModelSpec
from tinker_engine.model.token_ids import check_tokens, check_vocabulary
from tinker_engine.training.losses import Loss
from tinker_engine.training.types import ArrayLike, CsrMatrix, Datum, Example

MIN_TOKENS = 2  # a single token has no context to learn from; it is nearly always a slip in the shift by one


def check_data(data: Sequence[Datum], loss_name: str, loss: Loss, model: ModelSpec) -> list[Example]:
    if not data:
        raise InputError("data", "is empty; pass at least one datum")
    if len(data) % loss.group:
        raise InputError(
            "data",
            f"has {len(data)} datums; {loss_name} takes groups of {loss.group} in a row (a pair: chosen, rejected)",
        )
    examples = [_example(datum, f"data[{i}]", loss_name, loss, model) for i, datum in enumerate(data)]
    for i, example in enumerate(examples):
        if example.inputs_TK.keys() != examples[0].inputs_TK.keys():
            raise InputError(
                f"data[{i}].loss_fn_inputs",
                f"has {', '.join(example.inputs_TK)} where data[0] has {', '.join(examples[0].inputs_TK)}",
            )
    return examples


def _example(datum: Datum, where: str, loss_name: str, loss: Loss, model: ModelSpec) -> Example:
    tokens_T = check_tokens(datum.tokens, f"{where}.model_input", model)
    length = len(tokens_T)
    if length < MIN_TOKENS:
        raise InputError(f"{where}.model_input", f"has {length} token(s); at least {MIN_TOKENS} are needed")
    _check_names(datum.loss_fn_inputs, f"{where}.loss_fn_inputs", loss_name, loss)
    targets, target_shape = _targets(
        datum.loss_fn_inputs["target_tokens"], where, length, loss_name, loss, model
    )
    inputs = {
        name: _floats(value, f"{where}.loss_fn_inputs[{name!r}]", target_shape)
        for name, value in datum.loss_fn_inputs.items()
        if name != "target_tokens"
    }
    return Example(tokens_T, targets, inputs, target_shape)


def _check_names(inputs: Mapping[str, ArrayLike], where: str, loss_name: str, loss: Loss) -> None:
    if missing := [name for name in loss.required if name not in inputs]:
        raise InputError(
            where, f"{loss_name} needs {', '.join(missing)}; got {', '.join(inputs) or 'nothing'}"
        )
    known = (*loss.required, *loss.optional)
    if unknown := [name for name in inputs if name not in known]:
        raise InputError(
            where, f"{loss_name} does not take {', '.join(unknown)}; it takes {', '.join(known)}"
        )


def _targets(
    value: ArrayLike, where: str, length: int, loss_name: str, loss: Loss, model: ModelSpec
) -> tuple[Tensor, torch.Size]:
    where = f"{where}.loss_fn_inputs['target_tokens']"
    array = _dense(value, where)
    if array.dtype.kind not in "iu":
        raise InputError(where, f"must hold integers, got {array.dtype}")
    allowed = "[T] or [T, K]" if loss.many_targets else "[T]"
    if array.ndim not in ((1, 2) if loss.many_targets else (1,)):
        raise InputError(where, f"{loss_name} takes shape {allowed}, got {array.shape}")
    if array.shape[0] != length:
        raise InputError(where, f"has {array.shape[0]} rows for {length} input tokens; they must be equal")
    if array.size == 0:
        raise InputError(where, f"has shape {array.shape}; at least one target per position is needed")
    check_vocabulary(array, where, model)
    tensor = torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64))
    return tensor.view(length, -1), tensor.shape


def _floats(value: ArrayLike, where: str, shape: torch.Size) -> Tensor:
    array = _dense(value, where)
    if array.dtype.kind not in "iufb":
        raise InputError(where, f"must hold numbers, got {array.dtype}")
    if array.shape != tuple(shape):
        raise InputError(
            where, f"has shape {array.shape}; target_tokens has {tuple(shape)} and they must be equal"
        )
    if not np.isfinite(array).all():
        raise InputError(where, f"position {int(np.argmin(np.isfinite(array).ravel()))} is NaN or infinite")
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)).view(shape[0], -1)


def _dense(value: ArrayLike, where: str) -> np.ndarray:
    if isinstance(value, CsrMatrix):
        return _densify(value, where)
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        return value.float().numpy() if value.dtype in (torch.bfloat16, torch.float16) else value.numpy()
    try:
        return np.asarray(value)
    except ValueError as error:
        raise InputError(where, f"is ragged or not numeric: {error}") from error


def _densify(csr: CsrMatrix, where: str) -> np.ndarray:
    rows, columns = csr.shape
    starts, index = np.asarray(csr.row_starts), np.asarray(csr.columns)
    values = np.asarray(csr.values)
    consistent = (
        len(starts) == rows + 1
        and starts[0] == 0
        and starts[-1] == len(index) == len(values)
        and bool((np.diff(starts) >= 0).all())
        and (len(index) == 0 or (index.min() >= 0 and index.max() < columns))
    )
    if not consistent:
        raise InputError(where, f"is no valid CSR matrix of shape {csr.shape}")
    dense = np.zeros(csr.shape, dtype=values.dtype)
    dense[np.repeat(np.arange(rows), np.diff(starts)), index] = values
    return dense
