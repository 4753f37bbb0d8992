"""The API without the SDK: every byte of a request is the test's."""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from tests.tinker_engine.wire.support import text_chunk
from tinker_engine.model import tiny
from tinker_engine.wire import messages_pb2 as pb

API = "/api/v1"
PROTOBUF = "application/x-protobuf"
WAIT = 120.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def ok(self) -> Any:
        assert self.status == 200, f"{self.status}: {self.body[:500]!r}"
        return self.json()

    @property
    def error(self) -> str:
        """Of a refusal, which must be JSON with a length: an SDK retries whatever else for minutes."""
        assert self.status >= 400, self.body[:500]
        assert self.headers["content-type"] == "application/json"
        assert int(self.headers["content-length"]) == len(self.body) > 0
        content = self.json()
        assert content["category"] in ("user", "server")
        assert content["detail"] == content["error"]
        return content["error"]


class Raw:
    def __init__(self, url: str, key: str | None):
        self.url = url
        self.key = key

    def call(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """`path` goes out as it is, so that a test can spell what no library would."""
        address = urlsplit(self.url)
        connection = HTTPConnection(address.hostname or "", address.port, timeout=WAIT)
        sent = {"x-api-key": self.key} if self.key is not None else {}
        try:
            connection.request(method, path, body, sent | dict(headers or {}))
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str) -> Answer:
        return self.call("GET", API + path)

    def send(self, method: str, path: str, /, **fields: Any) -> Answer:
        return self.call(
            method, API + path, json.dumps(fields).encode(), {"content-type": "application/json"}
        )

    def post(self, path: str, /, **fields: Any) -> Answer:
        return self.send("POST", path, **fields)

    def result(self, accepted: Answer) -> Answer:
        """The answer to a request, once it is there."""
        request_id = accepted.ok()["request_id"]
        while (answer := self.post("/retrieve_future", request_id=request_id)).status == 408:
            pass
        return answer

    def done(self, accepted: Answer) -> Any:
        """Likewise, of one that succeeds and is not protobuf."""
        content = self.result(accepted).ok()
        assert "error" not in content, content
        return content

    # --- what most tests need ------------------------------------------------------------------------

    def session(self) -> str:
        return self.post("/create_session", tags=[], sdk_version="0.36").ok()["session_id"]

    def run(self, session: str | None = None, number: int = 0, seed: int = 1) -> str:
        lora = {"rank": 2, "seed": seed}
        fields = {"session_id": session or self.session(), "model_seq_id": number, "base_model": tiny.NAME}
        return self.done(self.post("/create_model", **fields, lora_config=lora))["model_id"]

    def forward_backward(self, run: str, seq_id: int, data: Sequence[Sequence[int]]) -> Answer:
        body = forward_backward_body(run, seq_id, data)
        return self.call("POST", API + "/forward_backward", body, {"content-type": PROTOBUF})

    def logprobs(self, accepted: Answer) -> bytes:
        answer = self.result(accepted)
        assert answer.headers["content-type"] == PROTOBUF, answer.body[:500]
        output = pb.ForwardBackwardOutput.FromString(answer.body)
        return output.loss_fn_outputs[0].fields["logprobs"].data

    def optim_step(self, run: str, seq_id: int, rate: float = 1e-2) -> Answer:
        return self.post("/optim_step", model_id=run, seq_id=seq_id, adam_params={"learning_rate": rate})

    def train(self, run: str, seq_id: int) -> tuple[bytes, Any]:
        """Two requests: a gradient that depends on `seq_id`, and a step."""
        data = [[5 + seq_id, 6, 7, 8 + seq_id, 9] * 3, [40, 30 + seq_id, 20]]
        gradient, step = self.forward_backward(run, seq_id, data), self.optim_step(run, seq_id + 1)
        return self.logprobs(gradient), self.done(step)["metrics"]

    def save(self, run: str, seq_id: int, name: str, **more: Any) -> str:
        return self.done(self.post("/save_weights", model_id=run, seq_id=seq_id, path=name, **more))["path"]

    def sampler(self, session: str, number: int, **source: str) -> str:
        made = self.post(
            "/create_sampling_session", session_id=session, sampling_session_seq_id=number, **source
        )
        return made.ok()["sampling_session_id"]

    def ask(self, sampler: str, seq_id: int, max_tokens: int = 4, **params: Any) -> Answer:
        return self.post(
            "/asample",
            sampling_session_id=sampler,
            seq_id=seq_id,
            num_samples=1,
            prompt={"chunks": [{"type": "encoded_text", "tokens": [5, 6, 7]}]},
            sampling_params={"max_tokens": max_tokens, "stop": []} | params,
        )

    def sample(self, sampler: str, seq_id: int, **params: Any) -> tuple[bytes, bytes]:
        answer = self.result(self.ask(sampler, seq_id, **params))
        assert answer.headers["content-type"] == PROTOBUF, answer.body[:500]
        (sequence,) = pb.SampleResponse.FromString(answer.body).sequences
        return sequence.tokens, sequence.logprobs


def forward_backward_body(run: str, seq_id: int, data: Sequence[Sequence[int]]) -> bytes:
    """Cross entropy of each token given those before it."""
    return pb.ForwardBackwardRequest(
        model_id=run, seq_id=seq_id, loss_fn="cross_entropy", data=[_datum(tokens) for tokens in data]
    ).SerializeToString()


def _datum(tokens: Sequence[int]) -> pb.Datum:
    targets = b"".join(token.to_bytes(8, "little") for token in tokens[1:])
    weights = struct.pack(f"<{len(tokens) - 1}f", *[1.0] * (len(tokens) - 1))
    inputs = {
        "target_tokens": pb.Tensor(dense=targets, dtype=pb.DTYPE_INT64, shape=[len(tokens) - 1]),
        "weights": pb.Tensor(dense=weights, dtype=pb.DTYPE_FLOAT32, shape=[len(tokens) - 1]),
    }
    return pb.Datum(model_input=[text_chunk(*tokens[:-1])], loss_fn_inputs=inputs)
