"""A server's life: started wrongly, filled up, damaged, stopped in the midst, moved to PostgreSQL."""

import json
import os
import resource
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path

import numpy as np
import pytest

from tests.server import ROOT, Server, running_server
from tests.tinker_engine.api.conftest import KEYS
from tests.tinker_engine.api.raw import API, Raw
from tests.tinker_engine.store.postgres import running_postgres
from tinker_engine.model import tiny

GLANCE_SECONDS = 0.02
PATIENCE = 1000  # glances


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    """It holds one run in memory at a time: all others are moved out and back."""
    with running_server(tmp_path_factory.mktemp("life"), "--run-bytes", "1") as server:
        yield server


@pytest.fixture
def client(server) -> Raw:
    return Raw(server.url, server.key)


def serve(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """To the end, which must come by itself."""
    return subprocess.run(
        [sys.executable, "-m", "tinker_engine", "serve", *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def until(condition) -> None:
    """Looks again and again, waiting in between for something that never comes."""
    nothing = threading.Event()
    for _ in range(PATIENCE):
        if condition():
            return
        nothing.wait(GLANCE_SECONDS)
    raise AssertionError("it never came about")


# --- starting --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::"])
def test_others_are_not_served_without_keys(tmp_path, host):
    done = serve("--data", str(tmp_path), "--host", host, "--port", "0", TINKER_ENGINE_KEYS="")
    assert done.returncode == 2
    assert "keys are needed" in done.stderr


@pytest.mark.parametrize(
    "line", ["alice", "alice:short", "alice:sk-0123456789abcdefghijk", ":tml-0123456789abcdefg"]
)
def test_a_bad_line_of_keys_is_refused_and_not_repeated(tmp_path, line):
    (tmp_path / "keys").write_text(line)
    done = serve("--data", str(tmp_path / "data"), "--port", "0", "--keys", str(tmp_path / "keys"))
    assert done.returncode == 2
    assert "OWNER:KEY" in done.stderr
    assert line.partition(":")[2] not in done.stderr or ":" not in line


def test_an_unknown_http_client_is_refused(tmp_path):
    done = serve("--data", str(tmp_path), "--port", "0", TINKER_ENGINE_CLIENT_HTTP="curl")
    assert done.returncode == 2
    assert "'curl'; the SDK has pyqwest (compiled) and httpx" in done.stderr


@pytest.mark.parametrize(("name", "compiled"), [("", True), ("pyqwest", True), ("httpx", False)])
def test_the_sdk_is_told_which_http_client_to_use(tmp_path, name, compiled):
    with running_server(tmp_path, environment={"TINKER_ENGINE_CLIENT_HTTP": name}) as server:
        told = Raw(server.url, server.key).post("/client/config").ok()
    assert told["use_pyqwest_transport"] is compiled


def test_a_second_engine_on_the_same_data_is_refused(server):
    done = serve("--data", str(server.data), "--port", "0")
    assert done.returncode == 3
    assert "another engine is using" in done.stderr
    assert server.health()["status"] == "ok"


def test_keys_are_in_no_file_that_others_can_read_nor_in_journal_or_log(shared_server, alice):
    alice.post("/auth/token").ok()
    token = alice.post("/auth/token").ok()["jwt"]
    Raw(shared_server.url, KEYS["alice"] + "x").get("/sessions")
    files = [path for path in shared_server.data.rglob("*") if path.is_file()]
    with_key = [p for p in files if any(k.encode() in p.read_bytes() for k in [*KEYS.values(), token])]
    assert with_key == [shared_server.data / "engine.json"]
    assert stat.S_IMODE(with_key[0].stat().st_mode) == 0o600
    assert not any(key in shared_server.output.read_text() for key in KEYS.values())


def test_the_key_of_this_machine_is_its_user_s_alone(server):
    for name in ("engine.json", "local.key"):
        assert stat.S_IMODE((server.data / name).stat().st_mode) == 0o600
    files = [
        path for path in server.data.rglob("*") if path.is_file() and server.key.encode() in path.read_bytes()
    ]
    assert sorted(path.name for path in files) == ["engine.json", "local.key"]


def test_nobody_ends_an_engine_that_was_started_by_hand(shared_server, bob):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert bob.call("POST", "/engine/parents", json.dumps({"pid": process.pid}).encode()).status == 200
        process.kill()
    bob.session()
    assert shared_server.health()["status"] == "ok"
    assert "ending" not in (shared_server.data / "engine.log").read_text()


# --- keeping ---------------------------------------------------------------------------------------------


def trained(client: Raw, steps: int = 3) -> list[object]:
    """Two runs in turns, with two gradients to a step."""
    runs = [client.run(number=0, seed=seed) for seed in (1, 2)]
    seen: list[object] = []
    for step in range(steps):
        first = [
            client.logprobs(client.forward_backward(run, 3 * step + 1, [[9, 8, 7 + step, 6]])) for run in runs
        ]
        seen += [first, *(client.train(run, 3 * step + 2) for run in runs)]
    return seen


def test_runs_that_are_moved_out_of_memory_come_back_as_they_were(client, alice):
    assert trained(client) == trained(alice)
    until(lambda: client.call("GET", "/engine/status").ok()["stats"]["runs"] >= 2)
    stats = client.call("GET", "/engine/status").ok()["stats"]
    assert stats["runs_in_memory"] < stats["runs"]


def test_a_checkpoint_is_collected_when_its_time_is_over(server, client):
    run = client.run()
    kept = client.save(run, 1, "kept")
    path = client.save(run, 2, "brief", ttl_seconds=1)
    folders = len(list((server.data / "checkpoints").iterdir()))
    until(lambda: client.post("/weights_info", tinker_path=path).status == 404)
    until(lambda: len(list((server.data / "checkpoints").iterdir())) < folders)
    client.post("/weights_info", tinker_path=kept).ok()
    client.send("PUT", f"/training_runs/{run}/checkpoints/weights/kept/ttl", ttl_seconds=1).ok()
    until(lambda: client.post("/weights_info", tinker_path=kept).status == 404)


def newest_checkpoint(server: Server) -> Path:
    return max((server.data / "checkpoints").iterdir(), key=lambda path: path.stat().st_mtime_ns)


@pytest.mark.parametrize("file", ["adapter_model.safetensors", "optimizer.safetensors", "manifest.json"])
def test_a_damaged_checkpoint_is_neither_loaded_nor_sampled(server, client, file):
    session = client.session()
    run = client.run(session)
    before = client.train(run, 1)
    path = client.save(run, 3, "damaged")
    damaged = newest_checkpoint(server) / file
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 64
    damaged.write_bytes(content)

    loaded = client.result(
        client.post("/load_weights", model_id=run, seq_id=4, path=path, optimizer=True)
    ).ok()
    assert "damaged" in loaded["error"] or "manifest" in loaded["error"]
    asked = client.ask(client.sampler(session, 0, model_path=path), 0)
    assert "error" in client.result(asked).ok()
    assert client.post("/copy_weights", source_path=path).status == 400
    again = client.run(session, number=1)  # the engine and the run go on as if nothing had been
    assert client.train(again, 1) == before
    assert client.train(again, 5) == client.train(run, 5)


def test_a_full_disk_fails_the_save_and_nothing_else(server, client):
    """As if it were full: no file may grow beyond a few bytes."""
    session = client.session()
    run, undisturbed = client.run(session), client.run(session, number=1)
    client.train(run, 1)
    path = client.save(run, 3, "before")
    pid = int(server.health()["compute_pid"])
    limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        for seq_id, kind in (
            (4, "save_weights"),
            (5, "save_weights_for_sampler"),
            (6, "save_weights_external"),
        ):
            failed = client.result(client.post(f"/{kind}", model_id=run, seq_id=seq_id, path="after")).ok()
            assert failed["category"] == "server"
            assert "File too large" in failed["error"], failed
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
    assert int(server.health()["compute_pid"]) == pid
    assert [p.name for p in (server.data / "checkpoints").iterdir() if p.name.startswith(".")] == []
    names = [c["tinker_path"] for c in client.get(f"/training_runs/{run}/checkpoints").ok()["checkpoints"]]
    assert names == [path]
    client.train(undisturbed, 1)
    assert client.train(run, 7) == client.train(undisturbed, 7)
    client.done(client.post("/load_weights", model_id=undisturbed, seq_id=9, path=path, optimizer=True))
    client.save(run, 9, "after")


# --- stopping --------------------------------------------------------------------------------------------


def heavy(step: int) -> list[list[int]]:
    rng = np.random.default_rng(step)
    return [rng.integers(5, 1000, size=128).tolist() for _ in range(8)]


def test_asked_to_end_it_lets_go_of_who_waits_and_its_successor_finishes(server, client):
    session = client.session()
    run, undisturbed = client.run(session), client.run(session, number=1)
    sampler = client.sampler(session, 5, base_model=tiny.NAME)
    accepted = [client.forward_backward(run, step, heavy(step)) for step in range(1, 5)]
    accepted.append(client.optim_step(run, 5))
    asked = client.ask(sampler, 0, max_tokens=200, seed=1)

    def poll(number: int) -> int:
        try:
            return client.post("/retrieve_future", request_id=accepted[number].ok()["request_id"]).status
        except (OSError, HTTPException):  # the server was gone first, as it may
            return 0

    with ThreadPoolExecutor(4) as pool:
        polls = [pool.submit(poll, -1) for _ in range(4)]
        until(lambda: any(poll.running() for poll in polls))
        assert server.stop() == 0  # in seconds, or it raises
        assert {poll.result() for poll in polls} <= {0, 200, 408}
    assert not (server.data / "engine.json").exists()
    server.start()
    expected = [
        client.logprobs(client.forward_backward(undisturbed, step, heavy(step))) for step in range(1, 5)
    ]
    assert [client.logprobs(answer) for answer in accepted[:4]] == expected
    assert client.done(accepted[4]) == client.done(client.optim_step(undisturbed, 5))
    assert client.sample(client.sampler(session, 6, base_model=tiny.NAME), 0, max_tokens=200, seed=1)[0]
    assert client.result(asked).status == 200
    again = client.forward_backward(run, 3, heavy(3))  # a late repetition
    assert client.logprobs(again) == expected[2]


# --- PostgreSQL ------------------------------------------------------------------------------------------


@pytest.mark.long
def test_on_postgres_a_killed_server_goes_on_where_it_was(tmp_path, alice):
    with running_postgres() as url, running_server(tmp_path, "--database", url) as server:
        client = Raw(server.url, server.key)
        session, other = client.session(), alice.session()
        run, undisturbed = client.run(session), alice.run(other)
        assert client.train(run, 1) == alice.train(undisturbed, 1)
        path = client.save(run, 3, "kept", user_metadata={"note": "ü\0"})
        gradient = client.forward_backward(run, 4, heavy(0))
        server.kill()
        server.restart()
        client = Raw(server.url, server.key)
        assert client.logprobs(gradient) == alice.logprobs(alice.forward_backward(undisturbed, 4, heavy(0)))
        assert client.done(client.optim_step(run, 5)) == alice.done(alice.optim_step(undisturbed, 5))
        assert client.train(run, 6) == alice.train(undisturbed, 6)
        client.done(client.post("/load_weights", model_id=run, seq_id=8, path=path, optimizer=True))
        sampler = client.sampler(session, 0, model_path=path)
        assert client.sample(sampler, 0, seed=3)[0]
        listed = client.get("/checkpoints").ok()["checkpoints"]
        assert [(c["tinker_path"], c["user_metadata"]) for c in listed] == [(path, {"note": "ü\0"})]
        assert client.call("GET", f"{API}/sessions/%00").status in (400, 404)
        assert client.post("/retrieve_future", request_id="\0").status in (400, 404)
        assert not list(server.data.glob("*.db"))
