"""Requests that are no good, over real HTTP: each gets a JSON answer that says why."""

import json
import socket
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette

from tests.tinker_engine.api.conftest import KEYS
from tests.tinker_engine.api.raw import API, PROTOBUF, Raw
from tests.tinker_engine.api.support import serving
from tinker_engine.api.hub import hub_routes
from tinker_engine.model import tiny
from tinker_engine.wire import messages_pb2 as pb

POSTS = (
    "client/config client/dynamic_config create_session session_heartbeat telemetry create_model get_info unload_model "
    "forward_backward optim_step save_weights load_weights save_weights_for_sampler save_weights_external weights_info "
    "create_sampling_session join_sampling_session asample retrieve_future cancel_future copy_weights auth/token"
).split()
GETS = (
    "get_server_capabilities sessions sessions/x samplers/x training_runs training_runs/x checkpoints auth/apikey/me"
).split()
LAX = {"client/config", "client/dynamic_config", "telemetry", "auth/token"}  # they read nothing
ONE_FIELD = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize("key", [None, "", "tml-wrong-0123456789abcdef", "eyJhbGciOiJIUzI1NiJ9.e30.x", "ü"])
def test_without_a_known_key_nothing_is_answered(shared_server, key):
    stranger = Raw(shared_server.url, key)
    for path in POSTS:
        assert stranger.post(f"/{path}").status == 401
        assert stranger.post(f"/{path}").error
    for path in GETS:
        assert stranger.get(f"/{path}").status == 401
    assert stranger.call("GET", "/files/x/y").status == 401
    assert stranger.call("GET", "/engine/status").status == 401
    assert stranger.call("POST", "/engine/parents", b'{"pid": 1}').status == 401


def test_health_and_metrics_need_no_key(shared_server):
    stranger = Raw(shared_server.url, None)
    assert stranger.call("GET", "/healthz").ok()["status"] == "ok"
    assert b"tinker_engine_training_queue" in stranger.call("GET", "/metrics").body


def test_a_key_may_come_as_bearer_and_as_a_token_made_from_it(shared_server, alice):
    token = alice.post("/auth/token").ok()["jwt"]
    for headers in ({"authorization": f"Bearer {KEYS['alice']}"}, {"x-api-key": token}):
        answer = Raw(shared_server.url, None).call("GET", API + "/auth/apikey/me", headers=headers)
        assert answer.ok()["name"] == "alice"


def test_a_token_with_another_name_or_signature_is_refused(shared_server, alice, bob):
    head, _, signature = alice.post("/auth/token").ok()["jwt"].split(".")
    claims = bob.post("/auth/token").ok()["jwt"].split(".")[1]
    for forged in (f"{head}.{claims}.{signature}", f"{head}.{claims}.", "eyJ", "eyJ.", "eyJ..", "eyJ.a.b.c"):
        assert Raw(shared_server.url, forged).get("/sessions").status == 401


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"null", b"\xff", b'{"a": NaN}', b"[" * 100_000, b"1" * 5000], ids=range(7)
)
def test_what_is_no_json_object_is_refused(alice, body):
    for path in set(POSTS) - LAX - {"forward_backward"}:
        answer = alice.call("POST", f"{API}/{path}", body)
        assert answer.status == 400, path
        assert answer.error.startswith("body:")


@pytest.mark.parametrize("path", sorted(set(POSTS) - LAX - {"create_session", "forward_backward"}))
def test_an_empty_object_lacks_something_that_is_named(alice, path):
    answer = alice.post(f"/{path}")
    assert answer.status == 400
    assert "is missing" in answer.error or "must be" in answer.error


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x0a\xff",
        b"\xff" * 50,
        pb.ForwardBackwardRequest(model_id="x").SerializeToString(),
        b"\x0a\x02\xff\xfe",
    ],
    ids=range(5),
)
def test_malformed_protobuf_is_refused(alice, body):
    answer = alice.call("POST", API + "/forward_backward", body, {"content-type": PROTOBUF})
    assert answer.status == 400
    assert answer.error


def test_forward_backward_must_be_protobuf_and_of_a_known_run(alice):
    assert "content-type" in alice.post("/forward_backward", model_id="x").error
    assert alice.forward_backward("nobody:train:0", 1, [[1, 2]]).status == 404


@pytest.mark.parametrize(
    "path", ["/", "/api/v1/nothing", "/api/v2/asample", "/api/v1/asample/", "/%00", "/api/v1/" + "x" * 5000]
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "PUT", "PATCH", "OPTIONS"])
def test_an_unknown_route_is_a_404(alice, method, path):
    answer = alice.call(method, path, b"{}" if method in ("POST", "PUT", "PATCH") else None)
    assert answer.status == 404
    assert "there is no" in answer.error


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/asample"), ("POST", "/sessions"), ("DELETE", "/create_model")]
)
def test_the_wrong_method_is_a_404_that_names_it(alice, method, path):
    answer = alice.call(method, API + path)
    assert answer.status == 404
    assert method in answer.error


def test_a_body_beyond_the_limit_is_refused_before_it_is_sent(alice):
    address = urlsplit(alice.url)
    with socket.create_connection((address.hostname, address.port), 60) as connection:
        head = f"POST {API}/asample HTTP/1.1\r\nhost: x\r\nx-api-key: {alice.key}\r\ncontent-length: {2 << 30}\r\n\r\n"
        connection.sendall(head.encode())
        answer = connection.makefile("rb").readline()
    assert answer.split()[1] == b"413"


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "br"])
def test_a_body_in_a_coding_that_it_has_not_is_refused(alice, encoding):
    answer = alice.call("POST", API + "/create_session", b"no such thing", {"content-encoding": encoding})
    assert answer.status == 400
    assert answer.error


@pytest.mark.parametrize(
    "query", ["limit=²", "limit=-1", "limit=x", "limit=" + "9" * 5000, "offset=1.5", "limit=", "limit=99999"]
)
@pytest.mark.parametrize("path", ["/sessions", "/checkpoints", "/training_runs"])
def test_a_page_must_be_numbers(alice, path, query):
    answer = alice.get(f"{path}?{quote(query, safe='=')}")
    assert answer.status == 400
    assert answer.error


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = (
    "session_id model_seq_id base_model lora_config optimizer_config user_metadata model_id seq_id path ttl_seconds "
    "overwrite sampling_session_seq_id model_path sampling_session_id num_samples prompt sampling_params request_id "
    "tinker_path source_path optimizer adam_params reason request_ids tags display_name"
).split()


@ONE_FIELD
@given(st.sampled_from(POSTS), st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=8))
def test_no_nonsense_is_an_internal_error(alice, path, fields):
    answer = alice.call("POST", f"{API}/{path}", json.dumps(fields).encode())
    assert answer.status in (200, 400, 404, 415), (path, fields, answer.body)
    if answer.status != 200:
        assert answer.error


odd_text = st.one_of(
    st.sampled_from(
        ["..", "../..", "%2e%2e", "a/../b", "\0", "a\n", "ü", "x" * 3000, "'; DROP TABLE runs; --", "{", "*"]
    ),
    st.text(max_size=30),
)


@ONE_FIELD
@given(odd_text, odd_text)
def test_no_odd_path_is_found_or_an_internal_error(alice, one, two):
    for left, right in ((quote(one, safe=""), quote(two, safe="")), (quote(one), quote(two))):
        for method, path in (
            ("GET", f"{API}/training_runs/{left}"),
            ("GET", f"{API}/training_runs/{left}/checkpoints"),
            ("DELETE", f"{API}/training_runs/{left}/checkpoints/weights/{right}"),
            ("PUT", f"{API}/training_runs/x/checkpoints/{left}/{right}/ttl"),
            ("GET", f"{API}/samplers/{left}"),
            ("GET", f"{API}/sessions/{left}"),
            ("GET", f"/files/{left}/{right}"),
        ):
            answer = alice.call(method, path, b"{}" if method == "PUT" else None)
            # Without the odd text some of these are listings.
            refused = (401, 404) if path.startswith("/files") else (400, 404)  # a file needs a link
            assert answer.status in refused or (not one and answer.status == 200), (path, answer.body)


def test_names_and_models_that_are_not_there_are_named(alice):
    session = alice.session()
    answer = alice.post(
        "/create_model", session_id=session, model_seq_id=0, base_model="no/such", lora_config={"rank": 2}
    )
    assert answer.status == 400
    assert tiny.NAME in answer.error
    answer = alice.post("/create_sampling_session", session_id=session, sampling_session_seq_id=0)
    assert "name a base_model or a model_path" in answer.error


@pytest.mark.parametrize("name", ["", "..", "a/b", "../../engine", "a\0", "ü", "x" * 200, ".hidden"])
@pytest.mark.parametrize("kind", ["save_weights", "save_weights_for_sampler", "save_weights_external"])
def test_a_checkpoint_needs_a_plain_name(shared_server, alice, run, kind, name):
    answer = alice.post(f"/{kind}", model_id=run, seq_id=1, path=name)
    assert answer.status == 400
    assert answer.error.startswith("path:")


@pytest.fixture(scope="module")
def run(shared_server) -> str:
    return Raw(shared_server.url, KEYS["alice"]).run()


@pytest.mark.parametrize(
    "odd", ["../config.json", "..%2f..%2f__init__.py", "%2e%2e/x", "%2fetc%2fpasswd", "a%00", "", "."]
)
def test_the_hub_serves_no_file_but_those_of_its_models(tmp_path, odd):
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "model.safetensors").write_text("secret")
    models = {"org/name": tmp_path / "model"}
    with serving(Starlette(routes=hub_routes(lambda: models, "https://hub.example"))) as url:
        client = Raw(url, None)
        for file in (
            odd,
            f"{odd}/secret",
            f"{odd}secret",
            "model.safetensors",
            "%2e%2e%2fsecret",
            "../secret",
        ):
            for path in (f"/org/name/resolve/main/{file}", f"/api/models/org/name/tree/main/{file}"):
                answer = client.call("GET", path)
                assert answer.status in (404, 307), path
                assert b"secret" not in answer.body.replace(path.encode(), b"").replace(
                    b"secret is not there", b""
                )
