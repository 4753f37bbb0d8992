"""A server that answers every call of the SDK at once with the same answer: what the SDK itself costs.

uvicorn benchmarks.null_server:app
"""

import json
from typing import Any

import numpy as np

from tinker_engine.api.sessions import CLIENT_CONFIG
from tinker_engine.wire import messages_pb2 as pb

JSON, PROTOBUF = b"application/json", b"application/x-protobuf"

SAMPLE = pb.SampleResponse(
    sequences=[
        pb.SampledSequence(
            tokens=np.zeros(1, "<i4").tobytes(),
            logprobs=np.zeros(1, "<f4").tobytes(),
            stop_reason=pb.STOP_REASON_LENGTH,
        )
    ]
).SerializeToString()

ANSWERS: dict[str, Any] = {
    "client/config": CLIENT_CONFIG | {"pjwt_auth_enabled": False},
    "client/dynamic_config": {"refresh_interval_sec": 300},
    "create_session": {"session_id": "s"},
    "session_heartbeat": {},
    "telemetry": {"status": "accepted"},
    "create_model": {"request_id": "create"},
    "optim_step": {"request_id": "optim"},
    "create_sampling_session": {"sampling_session_id": "s:sample:0"},
    "asample": {"request_id": "sample", "sample_sequence_ids": ["a"]},
}
RESULTS: dict[str, tuple[bytes, bytes]] = {
    "create": (b'{"model_id": "s:train:0"}', JSON),
    "optim": (b'{"metrics": {"grad_norm:mean": 1.0, "update_norm:mean": 1.0}}', JSON),
    "sample": (SAMPLE, PROTOBUF),
}


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        event = await receive()
        body, more = body + event.get("body", b""), event.get("more_body", False)
    name = scope["path"].removeprefix("/api/v1/")
    if name == "retrieve_future":
        content, media = RESULTS[json.loads(body)["request_id"]]
    else:
        content, media = json.dumps(ANSWERS[name]).encode(), JSON
    headers = [(b"content-type", media), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content})
