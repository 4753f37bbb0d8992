import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tinker_engine.engines import STANDIN, WAIT, ends, kill, said, user
from tinker_engine import config, embedded, tombstone
from tinker_engine.embedded import Engine, client_environment, start_or_join
from tinker_engine.errors import EngineError
from tinker_engine.process import Process

ENGINE = embedded.PROGRAM


@pytest.fixture(autouse=True)
def _standin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "PROGRAM", STANDIN)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    engines: list[Engine] = []

    def starting(data: Path = tmp_path, **options) -> Engine:
        engines.append(start_or_join(data, **options))
        return engines[-1]

    yield starting
    for engine in engines:
        if engine.started_here:
            engine.stop()


def _starts(data: Path) -> list[str]:
    return (data / "starts").read_text().splitlines()


def _get(url: str, method: str = "GET", data: bytes | None = None) -> tuple[int, dict]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, data, method=method)
    try:
        with opener.open(request, timeout=WAIT) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read(int(error.headers["content-length"])))


def test_an_engine_is_started_with_its_models_and_stopped(tmp_path, start):
    engine = start(models=["a/b", "c/d"])
    assert engine.started_here
    assert engine.alive
    assert engine.key == "tml-standin"
    assert engine.log == tmp_path / "engine.log"
    assert _get(f"{engine.url}/healthz") == (200, {"status": "ok"})
    assert _starts(tmp_path) == [f"{engine.pid} a/b c/d"]
    assert engine.stop()
    assert not engine.alive
    assert not (tmp_path / "engine.json").exists()
    assert engine.stop()


def test_the_default_directory_is_the_users_own(tmp_path, monkeypatch, start):
    monkeypatch.setenv("TINKER_ENGINE_HOME", str(tmp_path))
    assert start(None).data == config.data_dir() == tmp_path / "data"
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700


def test_a_healthy_engine_is_joined(tmp_path, start):
    first, second = start(), start()
    assert first.started_here
    assert not second.started_here
    assert (first.pid, first.url) == (second.pid, second.url)
    assert len(_starts(tmp_path)) == 1
    with pytest.raises(EngineError, match="started by another process"):
        second.stop()


def test_an_engine_that_others_use_is_left_to_them(tmp_path, start):
    engine = start()
    with user(tmp_path) as other:
        assert said(other) == {"pid": engine.pid, "started": False}
        assert not engine.stop()
        assert engine.alive
        assert not engine.stop()
    assert engine.stop()


def test_of_processes_that_come_at_once_one_starts_and_the_others_join(tmp_path):
    with user(tmp_path) as a, user(tmp_path) as b, user(tmp_path) as c:
        answers = [said(process) for process in (a, b, c)]
        assert sorted(answer["started"] for answer in answers) == [False, False, True]
        assert len({answer["pid"] for answer in answers}) == 1
    assert len(_starts(tmp_path)) == 1


def test_the_engine_ends_when_the_last_of_its_parents_is_killed(tmp_path):
    with user(tmp_path) as first, user(tmp_path) as second:
        pid = said(first)["pid"]
        assert said(second)["pid"] == pid
        first.kill()
        first.wait()
        assert Process(pid).gone(within=0.1) is False
        second.kill()
        assert ends(pid)


def test_a_file_that_a_killed_engine_left_is_not_trusted(tmp_path, start):
    with user(tmp_path) as process:
        old = said(process)["pid"]
        kill(old)
    assert (tmp_path / "engine.json").exists()
    engine = start()
    assert engine.started_here
    assert engine.pid != old


@pytest.mark.parametrize(
    "left",
    [
        "{",
        "[]",
        '{"pid": 1}',
        json.dumps({"pid": os.getpid(), "url": "http://127.0.0.1:9", "key": "k", "log": "l"}),
    ],
    ids=["no JSON", "no object", "only a process", "another process"],
)
def test_a_file_that_names_no_engine_is_not_trusted(tmp_path, start, left):
    (tmp_path / "engine.json").write_text(left)
    assert start().started_here


def test_an_engine_of_somebody_else_on_the_old_port_is_not_trusted(tmp_path, start):
    other = start(tmp_path / "other")
    record = {"pid": other.pid, "url": other.url, "key": "tml-old", "log": str(tmp_path / "engine.log")}
    (tmp_path / "engine.json").write_text(json.dumps(record))
    engine = start()
    assert engine.started_here
    assert engine.url != other.url


def test_an_engine_that_is_going_away_is_replaced(tmp_path, start):
    """It holds the directory until it has saved its state."""
    lock = os.open(tmp_path / "lock", os.O_WRONLY | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    progress: list[str] = []

    def gone_when_noticed(message: str) -> None:
        progress.append(message)
        os.close(lock)

    assert start(on_progress=gone_when_noticed).started_here
    assert "starting the engine" in progress[0]


def test_a_directory_that_stays_in_use_is_an_error(tmp_path, start):
    with (tmp_path / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(EngineError, match=r"a process has the directory|another process has"):
            start(timeout=3)


def test_an_engine_that_fails_at_start_says_why(tmp_path, start, monkeypatch):
    (tmp_path / "engine.log").write_text("of an earlier run\n")
    monkeypatch.setenv("STANDIN", "refuse")
    with pytest.raises(
        EngineError, match=r"exit code 5; its log is .*engine\.log; last lines: the disk is full$"
    ) as failed:
        start()
    assert "earlier" not in str(failed.value)


def test_an_engine_that_never_answers_is_ended(tmp_path, start, monkeypatch):
    monkeypatch.setenv("STANDIN", "hang")
    with pytest.raises(EngineError, match=r"no engine on .* after 1.5 s: its log is"):
        start(timeout=1.5)
    assert ends(int(_starts(tmp_path)[0]))


def test_an_interrupted_start_leaves_nothing_behind(tmp_path, start, monkeypatch):
    monkeypatch.setenv("STANDIN", "hang")

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(on_progress=interrupt)
    assert ends(int(_starts(tmp_path)[0]))


def _death_of(engine: Engine, told: threading.Event) -> None:
    os.kill(engine.pid, signal.SIGKILL)
    assert told.wait(WAIT)


def _answer_of_the_dead(url: str, **request) -> tuple[int, dict]:
    """The port is taken over by a thread: refused connections before that are no failure."""
    while True:
        try:
            return _get(url, **request)
        except (urllib.error.URLError, ConnectionError):
            continue


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_a_dead_engines_port_tells_why(tmp_path, start, method):
    told = threading.Event()
    reasons: list[str] = []
    engine = start(on_death=lambda reason: (reasons.append(reason), told.set()))
    _death_of(engine, told)
    assert not engine.alive
    body = b"x" * 5_000_000 if method in ("POST", "PUT") else None
    status, answer = _answer_of_the_dead(f"{engine.url}/api/v1/anything", method=method, data=body)
    assert status == 400
    assert answer == {"error": reasons[0]}
    for part in (
        f"pid {engine.pid}",
        "SIGKILL",
        "ready to train",
        str(engine.log),
        "start your script again",
    ):
        assert part in reasons[0]


def test_a_joined_engines_death_is_told_too(tmp_path, start):
    told = threading.Event()
    reasons: list[str] = []
    with user(tmp_path) as process:
        said(process)
        engine = start(on_death=lambda reason: (reasons.append(reason), told.set()))
        assert not engine.started_here
        _death_of(engine, told)
        assert _answer_of_the_dead(f"{engine.url}/healthz")[0] == 400
        process.kill()  # whichever of us has the port: when the other one leaves, it is answered still
        process.wait()
        assert _answer_of_the_dead(f"{engine.url}/healthz") == (400, {"error": reasons[0]})


def test_an_end_that_was_asked_for_leaves_the_port_alone(start):
    told = threading.Event()
    engine = start(on_death=lambda _: told.set())
    engine.stop()
    engine._watcher.join(WAIT)
    assert not engine._watcher.is_alive()
    assert not told.is_set()


def test_a_new_engine_can_follow_a_dead_one(start):
    told = threading.Event()
    first = start(on_death=lambda _: told.set())
    _death_of(first, told)
    second = start()
    assert second.started_here
    assert second.alive
    assert _get(f"{second.url}/healthz")[0] == 200


def test_a_forked_child_does_not_stop_the_engine(start):
    engine = start()
    child = os.fork()
    if child == 0:
        try:
            engine.stop()
        except EngineError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert engine.alive


def test_the_environment_for_clients(start):
    engine = start()
    assert client_environment(engine, {}) == {
        "TINKER_BASE_URL": engine.url,
        "TINKER_API_KEY": engine.key,
        "HF_ENDPOINT": engine.url,
        "TINKER_TELEMETRY": "0",
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
    }
    chosen = {"HF_ENDPOINT": "https://mirror", "TINKER_TELEMETRY": "1", "no_proxy": "a.org, localhost"}
    result = client_environment(engine, chosen)
    assert "HF_ENDPOINT" not in result
    assert "TINKER_TELEMETRY" not in result
    assert result["NO_PROXY"] == result["no_proxy"] == "a.org,localhost,127.0.0.1"
    assert client_environment(engine, {"NO_PROXY": "*"})["no_proxy"] == "*"


def test_importing_it_is_quick_because_it_needs_no_torch():
    script = (
        "import sys; import tinker_engine.embedded; print('torch' in sys.modules, 'httpx' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert output.split() == ["False", "False"]


def test_the_engine_imports_nothing_from_the_users_folder(tmp_path):
    (tmp_path / "argparse.py").write_text("raise SystemExit('the wrong module')")
    command = [*ENGINE, "--help"]
    done = subprocess.run(command, cwd=tmp_path, env=embedded._engine_environment(), capture_output=True)
    assert done.returncode == 0, done.stderr


def _forbidden(pid: int) -> int:
    raise PermissionError(pid)


@pytest.mark.parametrize("sandboxed", [False, True])
def test_where_there_are_no_pidfds_processes_are_watched_by_looking(monkeypatch, sandboxed):
    if sandboxed:
        monkeypatch.setattr(os, "pidfd_open", _forbidden)
    else:
        monkeypatch.delattr(os, "pidfd_open")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    mine, foreign = Process.of_child(child), Process(child.pid)
    assert not mine.gone(within=0)
    assert not foreign.gone(within=0)
    child.communicate(b"\n")
    assert mine.gone(within=None)
    assert foreign.gone(within=WAIT)
    assert mine.fate() == "it ended with exit code 0"
    with pytest.raises(ProcessLookupError):
        Process(child.pid)


def test_a_port_that_somebody_has_is_left_alone():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert tombstone._bind(taken.getsockname(), "reason") is None
