import pytest

from tests.server import running_server
from tests.tinker_cookbook.fake_service import FakeService
from tests.tinker_cookbook.rl import small_runs
from tinker_cookbook import service
from tinker_cookbook.rl import train
from tinker_cookbook.tokenizer_utils import get_tokenizer, register_tokenizer, unregister_tokenizer
from tinker_cookbook.utils.loggers import json_file, pretty


@pytest.fixture(scope="session")
def rl_server(tmp_path_factory):
    """One engine for all that train on it."""
    with running_server(tmp_path_factory.mktemp("engine")) as server:
        yield server


@pytest.fixture
def engine(rl_server, monkeypatch):
    """Found as a user's scripts find it."""
    monkeypatch.setenv("TINKER_BASE_URL", rl_server.url)
    monkeypatch.setenv("TINKER_API_KEY", rl_server.key)
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    return rl_server


@pytest.fixture
def fake(monkeypatch):
    """Every run of the test is against this service, whose updates are named by the groups they are made of."""
    fake = FakeService(describe=small_runs.places)
    monkeypatch.setattr(service, "connect", lambda *_: fake)
    # What takes longest of a small run, and is tested elsewhere.
    monkeypatch.setattr(train, "draw_curves", lambda *_: None)
    monkeypatch.setattr(pretty.PrettyPrintLogger, "log_metrics", lambda *_, **__: None)
    monkeypatch.setattr(json_file, "code_state", lambda *_: "")
    register_tokenizer(small_runs.MODEL, lambda: get_tokenizer("tinker-engine/tiny-chat"))
    yield fake
    unregister_tokenizer(small_runs.MODEL)
