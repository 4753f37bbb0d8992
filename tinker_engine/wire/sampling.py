"""asample: JSON request → a `SampleRequest`, a `SampleResult` → answer bytes.

The request names a sampling session, not a model; whoever knows the session adds the adapter. The answer is
one protobuf message: tokens as int32 and logprobs as float32 bytes, NaN where a prompt position has none, and
top-k alternatives as [positions, K] matrices whose empty cells are token 0 with logprob −99999.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from tinker_engine.sampling.types import (
    SampledSequence,
    SampleRequest,
    SampleResult,
    SamplingParams,
    TokenLogprob,
)
from tinker_engine.training.types import CsrMatrix
from tinker_engine.wire import messages_pb2 as pb
from tinker_engine.wire.chunks import read_chunks
from tinker_engine.wire.fields import MOST_SEED, Fields, check_integers, check_text
from tinker_engine.wire.tensors import (
    check_csr,
    densify,
    encode_floats,
    encode_tokens,
    float32_bytes,
    int32_bytes,
    matrix_shape,
    shaped,
)

EMPTY_LOGPROB = -99999.0
_STOP_REASONS = {"stop": pb.STOP_REASON_STOP, "length": pb.STOP_REASON_LENGTH}


@dataclass(frozen=True)
class SampleCall:
    sampling_session_id: str
    seq_id: int  # an identity, not an order
    request: SampleRequest  # without its adapter
    target_cells: CsrMatrix | None = None  # how target_prompt_logprobs was sparse; the answer must be alike
    record_stability_info: bool = False  # wanted by training with stable_reinforce


def read_sample(body: Fields) -> SampleCall:
    """Types are checked here, ranges where the engine takes the request."""
    targets, target_cells = _targets(body.optional_nested("target_prompt_logprobs"))
    prompt = body.nested("prompt")
    request = SampleRequest(
        prompt=read_chunks(prompt.items("chunks"), prompt.path("chunks")),
        params=_params(body.nested("sampling_params")),
        num_samples=body.integer("num_samples", 1),
        prompt_logprobs=body.flag("prompt_logprobs", False),
        topk_prompt_logprobs=body.integer("topk_prompt_logprobs", 0),
        topk_sample_logprobs=body.integer("topk_sample_logprobs", 0),
        target_prompt_logprobs=targets,
        prompt_logprobs_last_n=body.optional_integer("prompt_logprobs_last_n"),
        prompt_alt_tokens_k=body.integer("prompt_alt_tokens_k", 0),
    )
    return SampleCall(
        sampling_session_id=body.text("sampling_session_id"),
        seq_id=body.integer("seq_id", least=0),
        request=request,
        target_cells=target_cells,
        record_stability_info=body.flag("record_stability_info", False),
    )


def encode_sample(result: SampleResult, *, target_cells: CsrMatrix | None = None) -> bytes:
    """`target_cells` are the call's: they shape the answer, not the computation."""
    message = pb.SampleResponse(
        sequences=[_sequence(sequence) for sequence in result.sequences],
        prompt_cache_hit_tokens=result.prompt_cache_hit_tokens,
    )
    if result.prompt_logprobs is not None:
        message.prompt_logprobs = float32_bytes(result.prompt_logprobs)
    if result.topk_prompt_logprobs is not None:
        message.topk_prompt_logprobs.CopyFrom(_topk(result.topk_prompt_logprobs))
    if result.target_prompt_logprobs is not None:
        # A cell that asked for nothing is 0 on the wire.
        asked = ~np.isnan(result.target_prompt_logprobs)
        logprobs = np.where(asked, result.target_prompt_logprobs, 0.0)
        message.target_prompt_logprobs.CopyFrom(encode_floats(logprobs, target_cells))
    if (drawn := result.prompt_alt_tokens) is not None:
        message.prompt_alt_tokens.tokens.CopyFrom(encode_tokens(drawn.tokens))
        message.prompt_alt_tokens.logprobs.CopyFrom(encode_floats(drawn.logprobs))
    return message.SerializeToString()


def _params(fields: Fields) -> SamplingParams:
    default = SamplingParams()
    return SamplingParams(
        max_tokens=fields.optional_integer("max_tokens"),
        seed=fields.optional_integer("seed", most=MOST_SEED),
        stop=_stop(fields),
        temperature=fields.number("temperature", default.temperature),
        top_k=fields.integer("top_k", default.top_k),
        top_p=fields.number("top_p", default.top_p),
    )


def _stop(fields: Fields) -> str | list[str] | list[int] | None:
    """Absent stops at the end of sequence, [] never: the difference must survive."""
    value = fields.values.get("stop")
    if value is None or isinstance(value, str):
        return fields.optional_text("stop")
    if not isinstance(value, list):
        raise fields.error("stop", "must be a string, a list of strings or a list of token ids")
    texts = [item for item in value if isinstance(item, str)]
    if not texts:
        return check_integers(value, fields.path("stop"))
    if len(texts) != len(value):
        raise fields.error("stop", "must hold strings only or token ids only")
    return [check_text(text, f"{fields.path('stop')}[{i}]") for i, text in enumerate(texts)]


def _targets(fields: Fields | None) -> tuple[np.ndarray | None, CsrMatrix | None]:
    """Dense, with −1 in cells that ask for nothing; and the CSR matrix if it came as one."""
    if fields is None:
        return None, None
    if (dtype := fields.text("dtype")) != "int64":
        raise fields.error("dtype", f"must be int64, got {dtype!r}")
    shape = matrix_shape(fields.integers("shape"), fields.path("shape"))
    ids = np.array(fields.integers("data"), dtype=np.int64)
    if fields.has("sparse_crow_indices") or fields.has("sparse_col_indices"):
        starts = np.array(fields.integers("sparse_crow_indices"), dtype=np.int64)
        columns = np.array(fields.integers("sparse_col_indices"), dtype=np.int64)
        cells = CsrMatrix(ids, starts, columns, shape)
        check_csr(cells, fields.where)
        return densify(cells, -1), cells
    return shaped(ids, shape, fields.where), None


def _sequence(sequence: SampledSequence) -> pb.SampledSequence:
    return pb.SampledSequence(
        stop_reason=_STOP_REASONS[sequence.stop_reason],
        tokens=int32_bytes(sequence.tokens),
        logprobs=float32_bytes(sequence.logprobs),
        topk_sampled_logprobs=None if sequence.topk_logprobs is None else _topk(sequence.topk_logprobs),
    )


def _topk(rows: Sequence[list[TokenLogprob] | None]) -> pb.TopkLogprobs:
    lengths = np.array([len(row) if row else 0 for row in rows], dtype=np.int64)
    width = max(1, int(lengths.max(initial=0)))  # 0 would read as "not asked for"
    tokens = np.zeros((len(rows), width), dtype="<i4")
    logprobs = np.full((len(rows), width), EMPTY_LOGPROB, dtype="<f4")
    filled = np.arange(width) < lengths[:, None]
    cells = chain.from_iterable(row for row in rows if row)
    flat = np.fromiter(chain.from_iterable(cells), dtype=np.float64)  # id, logprob, id, logprob, …
    tokens[filled], logprobs[filled] = flat[::2], flat[1::2]
    return pb.TopkLogprobs(token_ids=tokens.tobytes(), logprobs=logprobs.tobytes(), k=width, length=len(rows))
