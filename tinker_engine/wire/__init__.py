"""Bytes ⇄ our records: everything that knows protobuf or the JSON shapes of the Tinker API (SDK 0.25 to 0.36).

| call | request | answer | module |
|---|---|---|---|
| forward_backward, forward | protobuf → `decode_forward_backward` | protobuf ← `encode_forward_backward` | `training` |
| asample | JSON → `read_sample` | protobuf ← `encode_sample` | `sampling` |
| optim_step | JSON → `read_optim_step` | JSON, as it is | `optimizer` |
| create_model | JSON → `read_create_model` | JSON, as it is | `create_model` |

`body.unpack` undoes a Content-Encoding and `body.read_json` parses a body into `fields.Fields`, from which any other
request can be read; these two modules are free of torch, so this package imports none of its modules itself. Pure
functions: no HTTP, no engine state. What cannot be read as it was meant is an `InputError` that names the field;
ranges that depend on the model (vocabulary, context) are the engine's to check.
"""
