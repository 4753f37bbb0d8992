import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tinker_engine.engines import WAIT, ends, kill, python, user
from tinker_engine.cli import main

RUN = "import sys\nfrom tinker_engine.cli import main\nsys.exit(main({!r}))\n"


def _run(
    data: Path, *command: str, options: tuple[str, ...] = (), **environment: str
) -> subprocess.Popen[str]:
    return python(RUN.format(["run", "--data", str(data), *options, "--", *command]), **environment)


def _python(script: str) -> tuple[str, ...]:
    return sys.executable, "-c", script


def _engine_pid(data: Path) -> int:
    return int((data / "starts").read_text().split()[0])


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_the_command_has_an_engine_for_as_long_as_it_runs(tmp_path):
    script = (
        "import json, os, urllib.request\n"
        "answer = urllib.request.urlopen(os.environ['TINKER_BASE_URL'] + '/healthz').read()\n"
        "names = ['TINKER_API_KEY', 'HF_ENDPOINT', 'TINKER_BASE_URL', 'NO_PROXY', 'TINKER_TELEMETRY']\n"
        "print(json.dumps([json.loads(answer), *[os.environ.get(name) for name in names]]))\n"
        "raise SystemExit(7)\n"
    )
    process = _run(tmp_path, *_python(script), options=("--model", "a/b"), http_proxy="http://127.0.0.1:9")
    out, err = process.communicate(timeout=WAIT)
    assert process.returncode == 7, err
    health, key, hub, url, hosts, telemetry = json.loads(out)
    assert health == {"status": "ok"}
    assert key == "tml-standin"
    assert hub == url
    assert hosts.endswith("127.0.0.1,localhost")
    assert telemetry == "0"
    assert (tmp_path / "starts").read_text().split()[1] == "a/b"
    assert not (tmp_path / "engine.json").exists()
    assert ends(_engine_pid(tmp_path))


def test_an_engine_that_was_there_is_left_running(tmp_path):
    with user(tmp_path) as other:
        assert other.stdout is not None
        pid = json.loads(other.stdout.readline())["pid"]
        assert _run(tmp_path, *_python("")).wait(WAIT) == 0
        assert _engine_pid(tmp_path) == pid
        assert len((tmp_path / "starts").read_text().splitlines()) == 1
        assert (tmp_path / "engine.json").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_the_command_and_its_answer_comes_back(tmp_path, number):
    script = (
        "import signal, sys\n"
        f"signal.signal({number:d}, lambda *_: sys.exit(9))\n"
        "print('ready', flush=True)\n"
        "signal.pause()\n"
    )
    process = _run(tmp_path, *_python(script))
    assert _line(process) == "ready"
    process.send_signal(number)
    process.communicate(timeout=WAIT)
    assert process.returncode == 9
    assert ends(_engine_pid(tmp_path))


def test_a_command_that_a_signal_ended_exits_as_shells_say_it(tmp_path):
    process = _run(tmp_path, *_python("import os; os.kill(os.getpid(), 9)"))
    process.communicate(timeout=WAIT)
    assert process.returncode == 128 + 9


def test_a_dead_engine_is_reported_while_the_command_runs(tmp_path):
    process = _run(tmp_path, *_python("print('ready', flush=True); input()"))
    assert _line(process) == "ready"
    kill(_engine_pid(tmp_path))
    assert process.stderr is not None
    report = process.stderr.readline()
    assert "died: it was ended by SIGKILL" in report
    assert "ready to train" in report
    process.communicate("\n", timeout=WAIT)
    assert process.returncode == 0


def test_the_engine_ends_when_run_is_killed(tmp_path):
    process = _run(tmp_path, *_python("print('ready', flush=True); input()"))
    assert _line(process) == "ready"
    process.kill()
    assert ends(_engine_pid(tmp_path))
    process.communicate()


def test_a_program_that_does_not_exist_starts_nothing(tmp_path, capsys):
    assert main(["run", "--data", str(tmp_path), "--", "no-such-program", "x"]) == 127
    assert "no-such-program: no such program" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_program_is_an_error(tmp_path):
    script = tmp_path / "script"
    script.write_bytes(b"\0")
    script.chmod(0o755)
    process = _run(tmp_path / "data", str(script))
    assert "Exec format error" in process.communicate(timeout=WAIT)[1]
    assert process.returncode == 126


def test_without_a_command_it_says_what_to_type(capsys):
    for arguments in (["run"], ["run", "--"]):
        assert main(arguments) == 2
        assert "tinker-engine run -- python script.py" in capsys.readouterr().err


def test_the_dashes_may_be_left_out_and_options_after_the_command_are_its_own(monkeypatch):
    calls = []
    monkeypatch.setattr(
        "tinker_engine.run.run", lambda command, **options: calls.append((command, options)) or 0
    )
    assert main(["run", "python", "script.py", "--data", "x"]) == 0
    assert main(["run", "--data", "d", "--model", "m", "--", "python", "--", "--model"]) == 0
    assert calls == [
        (["python", "script.py", "--data", "x"], {"data": None, "models": []}),
        (["python", "--", "--model"], {"data": Path("d"), "models": ["m"]}),
    ]


def test_an_engine_that_does_not_start_is_the_error(tmp_path):
    process = _run(tmp_path, *_python(""), STANDIN="refuse")
    assert "the disk is full" in process.communicate(timeout=WAIT)[1]
    assert process.returncode == 1
