"""The helper that other tests rely on: a server can be killed and found again."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.server import ServerError, running_server


def test_same_address_and_key_after_a_kill(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        url, key, pid = server.url, server.key, server.pid
        assert server.health()["compute_pid"] != pid
        server.kill()
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(f"{url}/healthz", timeout=5)
        server.restart()
        assert (server.url, server.key) == (url, key)
        assert server.pid != pid


def test_only_the_compute_process_is_killed(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        serving, pid = server.pid, server.kill_compute()
        assert server.health()["status"] == "ok"
        assert server.pid == serving
        server.restart()
        assert server.health()["compute_pid"] != pid


def test_server_that_cannot_start_is_reported_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="no-such-option"), running_server(tmp_path, "--no-such-option"):
        pass


def test_engine_file_is_what_was_agreed(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        engine = json.loads((server.data / "engine.json").read_text())
        assert {"pid", "url", "key", "log", "version"} <= set(engine)
        assert server.stop() == 0
