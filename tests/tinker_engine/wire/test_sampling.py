import copy
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tinker import types
from tinker._compat import model_dump
from tinker.lib.public_interfaces.sampling_client import (
    _check_prompt_logprobs_last_n_honored,
    _tensor_data_to_model,
)
from tinker.proto.response_conv import deserialize_sample_response

from tinker_engine.errors import InputError
from tinker_engine.sampling.types import (
    PromptAltTokens,
    SampledSequence,
    SampleRequest,
    SampleResult,
    SamplingParams,
)
from tinker_engine.wire.body import read_json
from tinker_engine.wire.fields import Fields
from tinker_engine.wire.sampling import SampleCall, encode_sample, read_sample
from tinker_engine.wire.tensors import MOST_CELLS


def sdk_body(
    *, prompt: list[int] | None = None, params: Mapping[str, Any] | None = None, **more: Any
) -> bytes:
    """What the SDK posts to asample."""
    request = types.SampleRequest(
        sampling_session_id="s:sample:0",
        seq_id=0,
        prompt=types.ModelInput.from_ints([1, 2, 3] if prompt is None else prompt),
        sampling_params=types.SamplingParams(**(params or {})),
        **more,
    )
    return json.dumps(model_dump(request, exclude_unset=False, exclude_none=True, mode="json")).encode()


def read(**settings: Any) -> SampleCall:
    return read_sample(read_json(sdk_body(**settings)))


def test_the_sdk_s_defaults_are_ours():
    call = read()
    assert call == SampleCall("s:sample:0", 0, SampleRequest([1, 2, 3]))
    assert call.request.params == SamplingParams()


def test_missing_fields_have_the_sdk_s_defaults():
    body = {
        "sampling_session_id": "s:sample:0",
        "seq_id": 0,
        "prompt": {"chunks": [{"tokens": [1, 2, 3]}]},
        "sampling_params": {},
    }
    assert read_sample(Fields(body)) == read()


def test_everything_the_sdk_can_ask_for_arrives():
    call = read(
        num_samples=3,
        params={"max_tokens": 5, "seed": 2**64 - 1, "temperature": 0, "top_k": 4, "top_p": 0.5},
        prompt_logprobs=True,
        topk_prompt_logprobs=2,
        topk_sample_logprobs=1,
        prompt_alt_tokens_k=7,
        prompt_logprobs_last_n=2,
        record_stability_info=True,
    )
    assert call.request == SampleRequest(
        [1, 2, 3],
        SamplingParams(max_tokens=5, seed=2**64 - 1, temperature=0.0, top_k=4, top_p=0.5),
        num_samples=3,
        prompt_logprobs=True,
        topk_prompt_logprobs=2,
        topk_sample_logprobs=1,
        prompt_alt_tokens_k=7,
        prompt_logprobs_last_n=2,
    )
    assert call.record_stability_info


def test_the_prompt_may_come_in_pieces():
    chunks = [types.EncodedTextChunk(tokens=[1]), types.EncodedTextChunk(tokens=[2, 3])]
    body = json.loads(sdk_body())
    body["prompt"] = types.ModelInput(chunks=list(chunks)).model_dump(mode="json")
    assert read_sample(Fields(body)).request.prompt == [1, 2, 3]


@pytest.mark.parametrize("stop", [None, "\n", "", ["a", "é"], [5, 6], []])
def test_every_form_of_stop_keeps_its_meaning(stop: Any):
    assert read(params={"stop": stop}).request.params.stop == stop


IDS = torch.tensor([[4, -1, -1, -1, -1], [-1, -1, 5, 6, -1]])


@pytest.mark.parametrize("sparse", [False, True])
def test_targets_come_dense_or_sparse_and_are_answered_alike(sparse: bool):
    tensor = types.TensorData.from_torch_sparse(IDS, -1) if sparse else types.TensorData.from_torch(IDS)
    assert (tensor.sparse_crow_indices is not None) == sparse
    call = read(target_prompt_logprobs=_tensor_data_to_model(tensor))
    np.testing.assert_array_equal(call.request.target_prompt_logprobs, IDS.numpy())

    scored = np.where(IDS.numpy() >= 0, -IDS.numpy() / 2, np.nan).astype(np.float32)
    result = SampleResult([SampledSequence([9], [-1.0], "stop")], target_prompt_logprobs=scored)
    answer = deserialize_sample_response(encode_sample(result, target_cells=call.target_cells))
    assert answer.target_prompt_logprobs is not None
    assert answer.target_prompt_logprobs.sparse_crow_indices == tensor.sparse_crow_indices
    assert answer.target_prompt_logprobs.sparse_col_indices == tensor.sparse_col_indices
    np.testing.assert_array_equal(answer.target_prompt_logprobs.to_numpy(), np.nan_to_num(scored, nan=0.0))


def test_the_sdk_reads_a_plain_answer():
    result = SampleResult(
        [SampledSequence([7, 8], [-0.5, -1.5], "stop"), SampledSequence([9], [0.0], "length")],
        prompt_cache_hit_tokens=12,
    )
    answer = deserialize_sample_response(encode_sample(result))
    assert [sequence.tokens for sequence in answer.sequences] == [[7, 8], [9]]
    assert [sequence.logprobs for sequence in answer.sequences] == [[-0.5, -1.5], [0.0]]
    assert [sequence.stop_reason for sequence in answer.sequences] == ["stop", "length"]
    assert [sequence.topk_logprobs for sequence in answer.sequences] == [None, None]
    assert answer.prompt_cache_hit_tokens == 12
    assert answer.prompt_logprobs is None
    assert answer.topk_prompt_logprobs is None
    assert answer.target_prompt_logprobs is None
    assert answer.prompt_alt_tokens is None


SCORED = SampleResult(
    [SampledSequence([7, 8], [-0.5, -1.5], "stop", [[(7, -0.5), (3, -2.0)], [(8, -1.5)]])],
    prompt_logprobs=[None, -0.25, -math.inf, -4.0],
    topk_prompt_logprobs=[None, [(1, -0.5), (0, -1.0)], [(2, -0.125)], []],
)


def test_the_sdk_reads_scores():
    answer = deserialize_sample_response(encode_sample(SCORED))
    assert answer.prompt_logprobs == [None, -0.25, -math.inf, -4.0]
    assert answer.topk_prompt_logprobs == [None, [(1, -0.5), (0, -1.0)], [(2, -0.125)], None]
    assert answer.sequences[0].topk_logprobs == [[(7, -0.5), (3, -2.0)], [(8, -1.5)]]


def test_the_sdk_finds_nothing_before_the_last_n_scores():
    result = replace(
        SCORED,
        prompt_logprobs=[None, None, -math.inf, -4.0],
        topk_prompt_logprobs=[None, None, [(2, -0.125)], []],
    )
    answer = deserialize_sample_response(encode_sample(result))
    _check_prompt_logprobs_last_n_honored(answer, 2)
    assert answer.prompt_logprobs == [None, None, -math.inf, -4.0]
    assert answer.topk_prompt_logprobs == [None, None, [(2, -0.125)], None]


def test_a_prompt_of_one_token_has_top_k_of_nothing():
    result = SampleResult([SampledSequence([7], [-0.5], "stop")], topk_prompt_logprobs=[None])
    assert deserialize_sample_response(encode_sample(result)).topk_prompt_logprobs == [None]


def test_alternative_tokens_are_sent():
    draws = PromptAltTokens(np.array([[4, 5], [6, 7]]), np.array([[-1, -2], [-3, -4]], np.float32))
    answer = deserialize_sample_response(encode_sample(replace(SCORED, prompt_alt_tokens=draws)))
    assert answer.prompt_alt_tokens is not None
    assert answer.prompt_alt_tokens.tokens.tolist() == [[4, 5], [6, 7]]
    assert answer.prompt_alt_tokens.logprobs.tolist() == [[-1, -2], [-3, -4]]


TARGETS = {"data": [4, 5], "dtype": "int64", "shape": [2, 1]}
SPARSE = {"sparse_crow_indices": [0, 1, 2], "sparse_col_indices": [0, 0]}
INF = float("inf")


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("seq_id", None, "seq_id"),
        ("seq_id", -1, "seq_id"),
        ("seq_id", 2**63, "seq_id"),
        ("seq_id", True, "seq_id"),
        ("sampling_session_id", None, "sampling_session_id"),
        ("sampling_session_id", 5, "sampling_session_id"),
        ("sampling_session_id", "\ud800", "sampling_session_id"),
        ("num_samples", 1.0, "num_samples"),
        ("num_samples", "1", "num_samples"),
        ("num_samples", False, "num_samples"),
        ("prompt", None, "prompt"),
        ("prompt", [1, 2], "prompt"),
        ("prompt.chunks", {}, "prompt.chunks"),
        ("prompt.chunks", [[1]], "prompt.chunks[0]"),
        ("prompt.chunks", [{"type": "image", "data": ""}], "prompt.chunks[0]"),
        ("prompt.chunks", [{"type": "dmel", "dmel": ""}], "prompt.chunks[0]"),
        ("prompt.chunks", [{"type": "video"}], "prompt.chunks[0]"),
        ("prompt.chunks", [{"type": 3}], "prompt.chunks[0].type"),
        ("prompt.chunks", [{"type": "encoded_text"}], "prompt.chunks[0].tokens"),
        ("prompt.chunks", [{"tokens": [1, True]}], "prompt.chunks[0].tokens[1]"),
        ("prompt.chunks", [{"tokens": [1, 2.0]}], "prompt.chunks[0].tokens[1]"),
        ("prompt.chunks", [{"tokens": [1, [2]]}], "prompt.chunks[0].tokens[1]"),
        ("prompt.chunks", [{"tokens": [1, 2**63]}], "prompt.chunks[0].tokens"),
        ("sampling_params", None, "sampling_params"),
        ("sampling_params.temperature", math.nan, "sampling_params.temperature"),
        ("sampling_params.temperature", INF, "sampling_params.temperature"),
        ("sampling_params.temperature", 10**400, "sampling_params.temperature"),
        ("sampling_params.temperature", True, "sampling_params.temperature"),
        ("sampling_params.temperature", "1", "sampling_params.temperature"),
        ("sampling_params.max_tokens", 1.5, "sampling_params.max_tokens"),
        ("sampling_params.seed", 2**64, "sampling_params.seed"),
        ("sampling_params.top_k", True, "sampling_params.top_k"),
        ("sampling_params.top_p", [], "sampling_params.top_p"),
        ("sampling_params.stop", 5, "sampling_params.stop"),
        ("sampling_params.stop", {}, "sampling_params.stop"),
        ("sampling_params.stop", ["a", 5], "sampling_params.stop"),
        ("sampling_params.stop", [5, True], "sampling_params.stop[1]"),
        ("sampling_params.stop", ["a", "\udc00"], "sampling_params.stop[1]"),
        ("prompt_logprobs", 1, "prompt_logprobs"),
        ("prompt_alt_tokens_k", 0.5, "prompt_alt_tokens_k"),
        ("prompt_logprobs_last_n", "1", "prompt_logprobs_last_n"),
        ("target_prompt_logprobs", [[4], [5]], "target_prompt_logprobs"),
        ("target_prompt_logprobs", {**TARGETS, "dtype": "float32"}, "target_prompt_logprobs.dtype"),
        ("target_prompt_logprobs", {**TARGETS, "shape": None}, "target_prompt_logprobs.shape"),
        ("target_prompt_logprobs", {**TARGETS, "shape": [2]}, "target_prompt_logprobs.shape"),
        ("target_prompt_logprobs", {**TARGETS, "shape": [2, 2]}, "target_prompt_logprobs"),
        ("target_prompt_logprobs", {**TARGETS, "shape": [-2, -1]}, "target_prompt_logprobs.shape"),
        ("target_prompt_logprobs", {**TARGETS, "data": [4, 0.5]}, "target_prompt_logprobs.data[1]"),
        (
            "target_prompt_logprobs",
            {**TARGETS, "sparse_crow_indices": [0, 1, 2]},
            "target_prompt_logprobs.sparse_col_indices",
        ),
        (
            "target_prompt_logprobs",
            {**TARGETS, **SPARSE, "sparse_col_indices": [0, 1]},
            "target_prompt_logprobs",
        ),
        ("target_prompt_logprobs", {**TARGETS, **SPARSE, "shape": [2, MOST_CELLS]}, "target_prompt_logprobs"),
    ],
)
def test_what_has_the_wrong_type_is_refused_by_its_path(path: str, value: object, field: str):
    body = json.loads(sdk_body())
    *parents, name = path.split(".")
    inner = body
    for parent in parents:
        inner = inner[parent]
    inner[name] = value
    with pytest.raises(InputError) as caught:
        read_sample(Fields(body))
    assert caught.value.field == field


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FULL = json.loads(sdk_body(prompt_logprobs=True, prompt_logprobs_last_n=1, params={"stop": ["a"], "seed": 1}))
FULL["target_prompt_logprobs"] = {**TARGETS, **SPARSE}


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_any_json_in_any_place_is_read_or_refused(data: st.DataObject):
    body = copy.deepcopy(FULL)
    inner = body
    while True:
        key = data.draw(
            st.sampled_from(sorted(inner)) if isinstance(inner, dict) else st.integers(0, len(inner) - 1)
        )
        if isinstance(inner[key], dict | list) and inner[key] and data.draw(st.booleans()):
            inner = inner[key]
            continue
        inner[key] = data.draw(JSON)
        break
    with suppress(InputError):
        call = read_sample(Fields(body))
        assert isinstance(call.request.prompt, list)
