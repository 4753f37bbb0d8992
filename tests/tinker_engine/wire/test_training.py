import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tinker import types
from tinker.lib.chunked_fwdbwd_helpers import combine_fwd_bwd_output_results
from tinker.proto.response_conv import deserialize_forward_backward_output

from tests.tinker_engine.wire.support import decode_one, sdk_bytes, sdk_datum
from tinker_engine.model.spec import ModelSpec, RopeSpec
from tinker_engine.training.check import check_data
from tinker_engine.training.losses import find_loss
from tinker_engine.training.types import CsrMatrix, ForwardBackwardOutput
from tinker_engine.wire.tensors import densify
from tinker_engine.wire.training import decode_forward_backward, encode_forward_backward

MODEL = ModelSpec(
    architecture="LlamaForCausalLM",
    vocab_size=16,
    hidden_size=8,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    intermediate_size=8,
    max_context=32,
    rope=RopeSpec(),
    norm_eps=1e-5,
    tied_embeddings=True,
)
FLOATS = st.floats(width=32)  # NaN and infinity too: refusing them is the engine's business
INT64 = st.integers(-(2**63), 2**63 - 1)


def arrays(shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
    return st.one_of(
        hnp.arrays(np.float32, shape, elements=FLOATS), hnp.arrays(np.int64, shape, elements=INT64)
    )


@st.composite
def datums(draw: st.DrawFn) -> types.Datum:
    chunks = draw(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=6), max_size=3))
    shape = tuple(draw(st.lists(st.integers(0, 5), min_size=1, max_size=2)))
    names = draw(st.lists(st.text(max_size=8), unique=True, max_size=3))
    return types.Datum(
        types.ModelInput(chunks=[types.EncodedTextChunk(tokens=tokens) for tokens in chunks]),
        {name: types.TensorData.from_numpy(draw(arrays(shape))) for name in names},
    )


@settings(deadline=None, max_examples=150)
@given(st.lists(datums(), max_size=3))
def test_what_the_sdk_sends_arrives(data: list[types.Datum]):
    decoded = decode_forward_backward(sdk_bytes(data)).data
    assert len(decoded) == len(data)
    for ours, theirs in zip(decoded, data, strict=True):
        np.testing.assert_array_equal(ours.tokens, np.array(theirs.model_input.to_ints(), dtype=np.int64))
        assert ours.loss_fn_inputs.keys() == theirs.loss_fn_inputs.keys()
        for name, value in ours.loss_fn_inputs.items():
            assert isinstance(value, np.ndarray)
            assert value.dtype == theirs.loss_fn_inputs[name].to_numpy().dtype
            np.testing.assert_array_equal(value, theirs.loss_fn_inputs[name].to_numpy())


@settings(deadline=None, max_examples=50)
@given(
    hnp.arrays(
        np.int64, st.tuples(st.integers(2, 8), st.integers(4, 12)), elements=st.sampled_from([0, 0, 0, 5])
    )
)
def test_what_the_sdk_makes_sparse_arrives_alike(dense: np.ndarray):
    sent = types.TensorData.from_torch_sparse(torch.from_numpy(dense))
    value = decode_one(sdk_datum([1, 2], target_tokens=sent)).loss_fn_inputs["target_tokens"]
    assert isinstance(value, CsrMatrix) == (sent.sparse_crow_indices is not None)
    np.testing.assert_array_equal(
        densify(value, 0) if isinstance(value, CsrMatrix) else np.asarray(value), dense
    )


def test_a_tensor_without_a_shape_is_flat():
    sent = types.TensorData(data=[1.0, 2.0], dtype="float32")
    value = decode_one(sdk_datum([1, 2], weights=sent)).loss_fn_inputs["weights"]
    np.testing.assert_array_equal(np.asarray(value), [1.0, 2.0])


@pytest.mark.filterwarnings("error")  # torch warns of arrays it must not write to
def test_the_engine_takes_what_was_decoded():
    many = torch.zeros(2, 9, dtype=torch.int64)
    many[0, 3], many[1, 5] = 7, 8
    data = [
        sdk_datum([1, 2, 3], target_tokens=[2, 3, 4], weights=[0.0, 0.5, 1.0]),
        sdk_datum([1, 2], target_tokens=many, weights=many.float()),
    ]
    call = decode_forward_backward(sdk_bytes(data))
    assert isinstance(call.data[1].loss_fn_inputs["target_tokens"], CsrMatrix)
    flat, wide = check_data(call.data, call.loss_fn, find_loss(call.loss_fn), MODEL)
    assert flat.tokens_T.tolist() == [1, 2, 3]
    assert flat.targets_TK.tolist() == [[2], [3], [4]]
    assert flat.inputs_TK["weights"].tolist() == [[0.0], [0.5], [1.0]]
    assert torch.equal(wide.targets_TK, many)
    assert torch.equal(wide.inputs_TK["weights"], many.float())


def test_the_head_of_a_request_arrives():
    datum = sdk_datum([1, 2])
    call = decode_forward_backward(sdk_bytes([datum], "ppo", {"clip_low_threshold": 0.5}, forward_only=True))
    assert (call.model_id, call.seq_id, call.loss_fn) == ("s:train:0", 4, "ppo")
    assert call.forward_only
    assert call.loss_fn_config == {"clip_low_threshold": 0.5}
    assert decode_forward_backward(sdk_bytes([datum])).loss_fn_config is None


def test_a_text_option_wins_over_the_map_of_numbers():
    call = decode_forward_backward(sdk_bytes([sdk_datum([1, 2])], "custom", {"loss_id": "x", "beta": 2}))
    assert call.loss_fn_config == {"beta": 2.0, "loss_id": "x"}


def test_where_tokens_came_from_is_passed_over():
    spans: list[types.PromptProvenanceSpan | types.SampledProvenanceSpan] = [
        types.SampledProvenanceSpan(sequence_id="a", length=2)
    ]
    datum = sdk_datum([1, 2], target_tokens=[2, 3]).with_provenance(spans, spans)
    np.testing.assert_array_equal(decode_one(datum).tokens, [1, 2])


SHAPES = st.one_of(
    st.tuples(st.integers(1, 6)), st.tuples(st.integers(1, 6), st.integers(1, 3))
)  # [T] or [T, K], mixed within one request


@settings(deadline=None, max_examples=100)
@given(st.lists(SHAPES, max_size=8), st.integers(0, 2**32 - 1))
def test_the_sdk_reads_our_outputs(shapes: list[tuple[int, ...]], seed: int):
    generator = torch.Generator().manual_seed(seed)
    logprobs = [torch.randn(shape, generator=generator) for shape in shapes]
    metrics = {"loss:sum": 1.5, "logprob_gap:max": float("inf")}
    read = deserialize_forward_backward_output(
        encode_forward_backward(ForwardBackwardOutput(logprobs, metrics))
    )
    assert read.metrics == metrics
    assert read.loss_fn_output_type == "ArrayRecord"
    assert len(read.loss_fn_outputs) == len(logprobs)
    for theirs, ours in zip(read.loss_fn_outputs, logprobs, strict=True):
        assert theirs["logprobs"].shape == list(ours.shape)
        torch.testing.assert_close(theirs["logprobs"].to_torch(), ours, rtol=0, atol=0)
    assert combine_fwd_bwd_output_results([read]).metrics == metrics


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_outputs_are_float32_whatever_was_computed(dtype: torch.dtype):
    logprobs = torch.tensor([-0.5, -2.0], dtype=dtype, requires_grad=True)
    read = deserialize_forward_backward_output(encode_forward_backward(ForwardBackwardOutput([logprobs], {})))
    assert read.loss_fn_outputs[0]["logprobs"].tolist() == [-0.5, -2.0]
