"""Two keys on one server. What one made, the other cannot see, use or harm, over every route there is."""

import json
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest

from tests.tinker_engine.api.conftest import KEYS
from tests.tinker_engine.api.raw import API, Answer, Raw
from tinker_engine.api.app import create_app
from tinker_engine.model import tiny


@dataclass(frozen=True)
class Things:
    """What alice has."""

    session: str
    run: str
    sampler: str
    request: str
    weights: str
    sampler_weights: str
    external: str


@pytest.fixture(scope="module")
def things(shared_server) -> Things:
    alice = Raw(shared_server.url, KEYS["alice"])
    session = alice.session()
    run = alice.run(session)
    alice.train(run, 1)
    paths = [alice.save(run, 3, "secret")]
    for seq_id, kind in ((4, "save_weights_for_sampler"), (5, "save_weights_external")):
        paths.append(alice.done(alice.post(f"/{kind}", model_id=run, seq_id=seq_id, path="secret"))["path"])
    sampler = alice.sampler(session, 0, model_path=paths[1])
    request = alice.ask(sampler, 0).ok()["request_id"]
    return Things(session, run, sampler, request, *paths)


def refused_routes(things: Things) -> dict[tuple[str, str], dict[str, Any]]:
    """Route and body, of everything that names something that is alice's."""
    run, path = f"/training_runs/{things.run}", "/checkpoints/weights/secret"
    model = {"model_id": things.run, "seq_id": 90}
    return {
        ("POST", "/session_heartbeat"): {"session_id": things.session},
        ("POST", f"/sessions/{things.session}/finish"): {},
        ("GET", f"/sessions/{things.session}"): {},
        ("POST", "/create_model"): {
            "session_id": things.session,
            "model_seq_id": 9,
            "base_model": tiny.NAME,
            "lora_config": {"rank": 2},
        },
        ("POST", "/get_info"): {"model_id": things.run},
        ("POST", "/unload_model"): {"model_id": things.run},
        ("POST", "/optim_step"): model | {"adam_params": {"learning_rate": 1.0}},
        ("POST", "/save_weights"): model | {"path": "stolen"},
        ("POST", "/save_weights_for_sampler"): model | {"path": "stolen"},
        ("POST", "/save_weights_external"): model | {"path": "stolen"},
        ("POST", "/load_weights"): model | {"path": things.weights},
        ("POST", "/weights_info"): {"tinker_path": things.weights},
        ("POST", "/create_sampling_session"): {
            "session_id": things.session,
            "sampling_session_seq_id": 9,
            "base_model": tiny.NAME,
        },
        ("POST", "/join_sampling_session"): {"sampling_session_id": things.sampler},
        ("POST", "/asample"): {"sampling_session_id": things.sampler, "seq_id": 91},
        ("GET", f"/samplers/{things.sampler}"): {},
        ("POST", "/retrieve_future"): {"request_id": things.request},
        ("GET", run): {},
        ("GET", f"{run}?access_scope=accessible"): {},
        ("GET", f"{run}/checkpoints"): {},
        ("DELETE", run + path): {},
        ("PUT", f"{run}{path}/ttl"): {"ttl_seconds": 1},
        ("POST", f"{run}{path}/publish"): {},
        ("DELETE", f"{run}{path}/publish"): {},
        ("GET", f"{run}/checkpoints/external_weights/secret/external_weights_urls"): {},
        ("POST", "/copy_weights"): {"source_path": things.weights},
    }


HARMLESS = {  # they name nothing of anybody's, or answer nobody
    ("POST", "/client/config"),
    ("POST", "/client/dynamic_config"),
    ("POST", "/auth/token"),
    ("GET", "/auth/apikey/me"),
    ("DELETE", "/auth/apikey/me"),
    ("GET", "/get_server_capabilities"),
    ("POST", "/create_session"),
    ("POST", "/telemetry"),
    ("POST", "/create_custom_loss"),
    ("GET", "/training_runs/{run}/checkpoints/{kind}/{name}/archive"),
    ("POST", "/sessions/search"),
    ("PUT", "/sessions/{session}/project"),
    ("GET", "/sessions/{session}/trace_export"),
    ("GET", "/audit"),
    ("GET", "/billing/usage/events"),
    ("GET", "/billing/usage/checkpoints/current"),
    ("GET", "/healthz"),
}
TESTED_BELOW = {
    ("POST", "/forward_backward"),
    ("POST", "/cancel_future"),
    ("GET", "/sessions"),
    ("GET", "/training_runs"),
    ("GET", "/checkpoints"),
}


def ask(who: Raw, route: tuple[str, str], fields: dict[str, Any]) -> Answer:
    return who.call(route[0], API + route[1], json.dumps(fields).encode() if fields else None)


def test_every_route_is_thought_of(things):
    names = {
        things.run: "{run}",
        things.sampler: "{sampler}",
        things.session: "{session}",  # last: the others begin with it
        "secret": "{name}",
    }
    thought_of = set(HARMLESS | TESTED_BELOW)
    for method, path in refused_routes(things):
        spelled = path.partition("?")[0]
        for value, name in names.items():
            spelled = spelled.replace(value, name)
        thought_of.add((method, spelled.replace("/weights/{name}", "/{kind}/{name}")))
    app = create_app(mock.MagicMock(), mock.MagicMock(), lambda _: None)
    there = {
        (method, path.removeprefix(API))
        for route in app.routes
        if (path := getattr(route, "path", "")).startswith(API)
        for method in (getattr(route, "methods", None) or ())
        if method != "HEAD"
    }
    assert there - thought_of == set()


def test_all_that_is_another_s_is_not_there(bob, alice, things):
    for route, fields in refused_routes(things).items():
        answer = ask(bob, route, fields)
        assert answer.status == 404, (route, answer.body)
        assert answer.error
    answer = bob.forward_backward(things.run, 90, [[1, 2, 3]])
    assert answer.status == 404
    assert alice.get(f"/sessions/{things.session}").ok()["training_run_ids"] == [things.run]


def test_own_runs_cannot_use_what_is_another_s(bob, things):
    session = bob.session()
    run = bob.run(session)
    for path in (things.weights, things.sampler_weights):
        assert bob.post("/load_weights", model_id=run, seq_id=1, path=path, optimizer=False).status == 404
        answer = bob.post(
            "/create_sampling_session", session_id=session, sampling_session_seq_id=5, model_path=path
        )
        assert answer.status == 404


def test_listings_show_only_one_s_own(bob, alice, things):
    mine = [things.session, things.run, things.weights]
    for path in ("/sessions?limit=1000", "/training_runs?limit=1000", "/checkpoints?limit=1000"):
        assert not any(thing in bob.get(path).body.decode() for thing in mine), path
    assert things.run in alice.get("/training_runs?limit=1000").body.decode()
    assert things.run not in bob.get("/training_runs?limit=1000&access_scope=accessible").body.decode()
    assert things.run not in bob.call("GET", "/engine/status").body.decode()


def test_another_s_request_cannot_be_cancelled(bob, alice, things):
    accepted = alice.ask(things.sampler, 50, max_tokens=30)
    bob.post("/cancel_future", request_id=accepted.ok()["request_id"]).ok()
    bob.post("/cancel_future", request_ids=[accepted.ok()["request_id"]]).ok()
    assert alice.result(accepted).headers["content-type"] == "application/x-protobuf"


def test_a_link_opens_the_files_of_one_checkpoint_and_nothing_else(bob, alice, things):
    urls = alice.get(
        f"/training_runs/{things.run}/checkpoints/external_weights/secret/external_weights_urls"
    ).ok()["urls"]
    path, _, token = urls["adapter_model.safetensors"].removeprefix(alice.url).partition("?")
    assert bob.call("GET", f"{path}?{token}").status == 200, "whoever has the link"
    for nobody in ("", "?token=", "?token=eyJ.eyJ.x", f"?{token[:-2]}xx"):
        assert alice.call("GET", f"{path}{nobody}").status == 401
    assert alice.call("GET", f"/files/another/adapter_model.safetensors?{token}").status == 401
    assert Raw(alice.url, token.removeprefix("token=")).get("/training_runs").status == 401, "it is no key"
    folder, _, _ = path.rpartition("/")
    for odd in (
        "..%2fmanifest.json",
        "%2e%2e/manifest.json",
        "manifest.json",
        "",
        "%00",
        "../../engine.db",
        "..%2f..%2fengine.db",
    ):
        answer = alice.call("GET", f"{folder}/{odd}?{token}")
        assert answer.status in (400, 404), odd
        assert answer.error


def test_published_weights_can_be_used_but_not_changed_by_others(bob, alice):
    session = alice.session()
    run = alice.run(session)
    alice.train(run, 1)
    published = alice.done(alice.post("/save_weights_for_sampler", model_id=run, seq_id=3, path="shared"))[
        "path"
    ]
    alice.save(run, 4, "private", user_metadata={"note": "private"})
    route = f"/training_runs/{run}/checkpoints/sampler_weights/shared"
    expected = alice.sample(alice.sampler(session, 0, model_path=published), 0, seed=1)
    alice.send("POST", f"{route}/publish").ok()

    seen = bob.get(f"/training_runs/{run}?access_scope=accessible").ok()
    assert seen["last_sampler_checkpoint"]["tinker_path"] == published
    assert seen["last_checkpoint"] is None
    assert bob.sample(bob.sampler(bob.session(), 0, model_path=published), 0, seed=1) == expected
    copied = bob.post("/copy_weights", source_path=published).ok()["tinker_path"]
    for method, path in (("DELETE", route), ("PUT", f"{route}/ttl"), ("DELETE", f"{route}/publish")):
        assert bob.call(method, API + path, b'{"ttl_seconds": 1}').status == 404
    assert bob.get(f"/training_runs/{run}/checkpoints").status == 404

    alice.send("DELETE", f"{route}/publish").ok()
    assert bob.post("/weights_info", tinker_path=published).status == 404
    alice.call("DELETE", API + route).ok()
    assert bob.sample(bob.sampler(bob.session(), 0, model_path=copied), 0, seed=1) == expected
