"""`connect` in processes of their own, with the real SDK and a stand-in for the engine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tinker_engine.engines import WAIT, ends, python

_PRELUDE = """
import json, os, signal, sys, threading
from tinker_cookbook.service import connect

def engine_pid():
    return json.load(open(os.path.join(os.environ["TINKER_ENGINE_HOME"], "data", "engine.json")))["pid"]

def kill_engine():
    pid = engine_pid()
    pidfd = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    import select
    select.select([pidfd], [], [])

def show(**values):
    print(json.dumps(values), flush=True)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("TINKER_BASE_URL", "TINKER_API_KEY", "TINKER_TELEMETRY", "HF_ENDPOINT", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TINKER_ENGINE_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    return tmp_path


def _script(script: str, **environment: str) -> tuple[dict, str]:
    """What it showed, and what it said on stderr."""
    process = python(_PRELUDE + script, **environment)
    try:
        out, err = process.communicate(timeout=WAIT)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"still running: {process.communicate()}")
    assert process.returncode == 0, err
    return json.loads(out), err


def _starts(home: Path) -> list[int]:
    return [int(line) for line in (home / "data" / "starts").read_text().split()]


def test_without_a_server_one_engine_is_started_and_it_ends_with_the_script(home):
    script = """
before = dict(os.environ)
client = connect(user_metadata={"run": "a"})
again = connect()
show(
    models=[[m.model_name for m in c.get_server_capabilities().supported_models] for c in (client, again)],
    new={name: os.environ[name] for name in os.environ if os.environ[name] != before.get(name)},
)
"""
    shown, err = _script(script, NO_PROXY="a.org", no_proxy="a.org", http_proxy="http://127.0.0.1:9")
    assert shown["models"] == [["tinker-engine/tiny-chat"]] * 2
    new = shown["new"]
    assert new["TINKER_API_KEY"] == "tml-standin"
    assert new["NO_PROXY"] == new["no_proxy"] == "a.org,127.0.0.1,localhost"
    assert new["TINKER_TELEMETRY"] == "0"
    assert new["HF_ENDPOINT"] == new["TINKER_BASE_URL"]
    (pid,) = _starts(home)
    assert ends(pid)
    (line,) = err.splitlines()
    for part in ("started", new["TINKER_BASE_URL"], str(home / "data"), "engine.log"):
        assert part in line


@pytest.mark.parametrize(
    "environment", [{"TINKER_BASE_URL": "http://127.0.0.1:9"}, {"TINKER_API_KEY": "tml-mine"}]
)
def test_a_configured_server_is_used_as_it_is(home, environment):
    shown, err = _script("connect(); show(url=os.environ.get('TINKER_BASE_URL'))", **environment)
    assert shown["url"] == environment.get("TINKER_BASE_URL")
    assert err == ""
    assert not (home / "data").exists()


def test_a_named_server_is_used_as_it_is(home):
    _, err = _script("connect('http://127.0.0.1:9'); show()", TINKER_API_KEY="")
    assert err == ""
    assert not (home / "data").exists()


def test_children_use_the_same_engine(home):
    script = """
import subprocess
connect()
code = "from tinker_cookbook.service import connect; print(connect().get_server_capabilities())"
for _ in range(2):
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if child.returncode >= 0:  # threads of the SDK's compiled parts have aborted a process as it ended, once in many
        break
show(code=child.returncode, out=child.stdout, err=child.stderr)
"""
    shown, _ = _script(script)
    assert shown["code"] == 0, shown["err"]
    assert "tiny-chat" in shown["out"]
    assert shown["err"] == ""
    assert len(_starts(home)) == 1


def test_the_thread_of_the_sdk_has_ended_before_python_shuts_down(home):
    """Threads that still run then have been seen to abort a script that had done its work."""
    script = """
import atexit
from tinker_cookbook import service
atexit.unregister(service._end_thread_of_sdk)
atexit.register(lambda: show(running=loop.is_running()))  # the first to be registered is the last to be run
atexit.register(service._end_thread_of_sdk)
loop = connect().holder.get_loop()
assert loop.is_running()
"""
    shown, _ = _script(script)
    assert shown == {"running": False}


def test_a_forked_child_uses_the_engine_but_does_not_own_it(home):
    script = """
from tinker_cookbook import service
connect()
child = os.fork()
if child == 0:
    connect()
    os._exit(0 if service._local._engine is None else 1)
status = os.waitpid(child, 0)[1]
show(status=status, alive=service._local._engine.alive)
"""
    shown, _ = _script(script)
    assert shown == {"status": 0, "alive": True}
    assert len(_starts(home)) == 1


@pytest.mark.parametrize("telemetry", ["0", "1"])
def test_a_call_after_the_engines_death_raises_the_reason(home, telemetry):
    """With the SDK's own retries it would be silent for minutes, far longer than a script may take here."""
    script = """
client = connect()
client.get_server_capabilities()
client.create_sampling_client(base_model="tinker-engine/tiny-chat")
kill_engine()
try:
    client.get_server_capabilities()
except Exception as error:
    show(kind=type(error).__name__, message=str(error))
"""
    shown, err = _script(script, TINKER_TELEMETRY=telemetry)
    assert shown["kind"] == "BadRequestError"
    for part in ("died: it was ended by SIGKILL", "ready to train", str(home), "start your script again"):
        assert part in shown["message"]
    assert "died: it was ended by SIGKILL" in err


_PENDING = {
    "training": "client.create_lora_training_client('tinker-engine/tiny-chat')",
    "sampling": (
        "client.create_sampling_client(base_model='tinker-engine/tiny-chat').sample("
        "tinker.ModelInput.from_ints([1]), 1, tinker.SamplingParams(max_tokens=1)).result()"
    ),
}


@pytest.mark.parametrize(("pending", "telemetry"), [("training", "0"), ("sampling", "1")])
def test_a_result_that_is_waited_for_ends_with_the_reason(home, pending, telemetry):
    script = f"""
import tinker, urllib.request
client = connect()
def wait():
    try:
        {_PENDING[pending]}
    except Exception as error:
        show(kind=type(error).__name__, message=str(error))
waiting = threading.Thread(target=wait)
waiting.start()
urllib.request.urlopen(os.environ["TINKER_BASE_URL"] + "/standin/polling").read()
kill_engine()
waiting.join()
"""
    shown, _ = _script(script, TINKER_TELEMETRY=telemetry)
    assert "died: it was ended by SIGKILL" in shown["message"]
    assert "start your script again" in shown["message"]


def test_a_new_connection_after_a_death_starts_a_new_engine(home):
    script = """
first = connect()
first.get_server_capabilities()
before = dict(os.environ)
kill_engine()
models = connect().get_server_capabilities().supported_models
changed = sorted(name for name in os.environ if os.environ[name] != before.get(name))
show(models=len(models), changed=changed, kept=os.environ["NO_PROXY"], hub=os.environ["HF_ENDPOINT"],
     url=os.environ["TINKER_BASE_URL"])
"""
    shown, _ = _script(script, NO_PROXY="a.org")
    assert shown["models"] == 1
    assert shown["changed"] == ["HF_ENDPOINT", "TINKER_BASE_URL"]
    assert shown["hub"] == shown["url"]
    assert shown["kept"] == "a.org,127.0.0.1,localhost"
    assert len(_starts(home)) == 2


def test_tokenizers_come_from_the_engine_even_if_the_hub_library_was_imported_before(home):
    early = "import huggingface_hub.hf_api, transformers.utils.hub"
    script = f"""
{early}
client = connect().create_sampling_client(base_model="tinker-engine/tiny-chat")
tokenizer = client.get_tokenizer()
show(text=tokenizer.decode(tokenizer.encode("hello")))
"""
    shown, _ = _script(script)
    assert "hello" in shown["text"]


def test_the_users_own_hub_is_kept(home):
    script = """
import huggingface_hub.constants as hub
connect()
show(variable=os.environ["HF_ENDPOINT"], constant=hub.ENDPOINT)
"""
    shown, _ = _script(script, HF_ENDPOINT="http://127.0.0.1:9")
    assert shown == {"variable": "http://127.0.0.1:9", "constant": "http://127.0.0.1:9"}


def test_an_engine_that_does_not_start_is_an_error_at_once(home):
    script = """
try:
    connect()
except Exception as error:
    show(kind=type(error).__name__, message=str(error), exported="TINKER_BASE_URL" in os.environ)
"""
    shown, _ = _script(script, STANDIN="refuse")
    assert shown["kind"] == "EngineError"
    assert "the disk is full" in shown["message"]
    assert shown["exported"] is False


def test_the_cookbook_loads_the_engine_only_at_need():
    code = "import sys, tinker_cookbook.service; print('tinker_engine' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
