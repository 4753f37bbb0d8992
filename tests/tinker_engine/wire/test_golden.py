"""Messages written out by hand from the field numbers, so that no encoder vouches for itself."""

import numpy as np
import torch

from tinker_engine.sampling.types import SampledSequence, SampleResult
from tinker_engine.training.types import ForwardBackwardOutput
from tinker_engine.wire.sampling import encode_sample
from tinker_engine.wire.training import decode_forward_backward, encode_forward_backward


def test_a_request_is_read_from_its_bytes():
    body = bytes.fromhex(
        "0a 01 6d"  # 1 model_id "m"
        "10 03"  # 2 seq_id 3
        "1a 24"  # 3 data, 36 bytes
        "   0a 0c 0a 0a 0a 08 01000000 02000000"  # 1 model_input → 1 encoded_text → 1 tokens [1, 2]
        "   12 14 0a 01 77"  # 2 loss_fn_inputs "w"
        "         12 0f 0a 08 0000003f 0000803f 18 01 22 01 02"  # dense [0.5, 1.0], float32, shape [2]
        "22 03 70706f"  # 4 loss_fn "ppo"
        "2a 0c 0a 01 62 11 000000000000e03f"  # 5 loss_fn_config {"b": 0.5}
        "30 01"  # 6 forward_only
    )
    call = decode_forward_backward(body)
    assert (call.model_id, call.seq_id, call.loss_fn, call.forward_only) == ("m", 3, "ppo", True)
    assert call.loss_fn_config == {"b": 0.5}
    (datum,) = call.data
    np.testing.assert_array_equal(datum.tokens, [1, 2])
    np.testing.assert_array_equal(np.asarray(datum.loss_fn_inputs["w"]), np.array([0.5, 1.0], np.float32))


def test_an_output_has_these_bytes():
    output = ForwardBackwardOutput([torch.tensor([-1.0])], {"loss:sum": 2.0})
    assert encode_forward_backward(output) == bytes.fromhex(
        "0a 0b 41727261795265636f7264"  # 1 loss_fn_output_type "ArrayRecord"
        "12 37"  # 2 loss_fn_outputs, 55 bytes
        "   0a 0b 41727261795265636f7264"  # 1 type_tag
        "   12 26 0a 08 6c6f6770726f6273"  # 2 fields "logprobs"
        "         12 1a 0a 04 000080bf"  # 1 data [-1.0]
        "               12 10 0000000000000000 0400000000000000"  # 2 offsets [0, 4], in bytes
        "               18 01"  # 3 float32
        "   18 01"  # 3 num_datums
        "1a 13 0a 08 6c6f73733a73756d 11 0000000000000040"  # 3 metrics {"loss:sum": 2.0}
    )


def test_a_sample_has_these_bytes():
    result = SampleResult([SampledSequence([7], [-0.5], "length")], prompt_cache_hit_tokens=2)
    assert encode_sample(result) == bytes.fromhex(
        "0a 0e 08 01 12 04 07000000 1a 04 000000bf"  # 1 sequences: 1 LENGTH, 2 tokens [7], 3 logprobs [-0.5]
        "20 02"  # 4 prompt_cache_hit_tokens
    )
