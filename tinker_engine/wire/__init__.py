"""Bytes ⇄ our records: everything that knows protobuf or the JSON shapes of the Tinker API (SDK 0.25 to 0.36).

| call | request | answer |
|---|---|---|
| forward_backward, forward | protobuf → `decode_forward_backward` | protobuf ← `encode_forward_backward` |
| asample | JSON → `read_sample` | protobuf ← `encode_sample` |
| optim_step | JSON → `read_optim_step` | JSON, as it is |
| create_model | JSON → `read_create_model` | JSON, as it is |

`unpack` undoes a Content-Encoding and `read_json` parses a body into `Fields`, from which any other request can
be read. Pure functions: no HTTP, no engine state. What cannot be read as it was meant is an `InputError` that
names the field; ranges that depend on the model (vocabulary, context) are the engine's to check.
"""

from tinker_engine.wire.body import read_json, unpack
from tinker_engine.wire.create_model import CreateModelCall, read_create_model
from tinker_engine.wire.fields import Fields
from tinker_engine.wire.optimizer import OptimStepCall, check_optimizer_config, read_optim_step
from tinker_engine.wire.sampling import PromptAltTokens, SampleCall, encode_sample, read_sample
from tinker_engine.wire.training import (
    ForwardBackwardCall,
    decode_forward_backward,
    encode_forward_backward,
)

__all__ = [
    "CreateModelCall",
    "Fields",
    "ForwardBackwardCall",
    "OptimStepCall",
    "PromptAltTokens",
    "SampleCall",
    "check_optimizer_config",
    "decode_forward_backward",
    "encode_forward_backward",
    "encode_sample",
    "read_create_model",
    "read_json",
    "read_optim_step",
    "read_sample",
    "unpack",
]
