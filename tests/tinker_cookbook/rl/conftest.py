import pytest

from tests.tinker_cookbook.fake_service import FakeService
from tests.tinker_cookbook.rl import small_runs
from tinker_cookbook import service
from tinker_cookbook.rl import train
from tinker_cookbook.tokenizer_utils import get_tokenizer, register_tokenizer, unregister_tokenizer
from tinker_cookbook.utils.loggers import json_file, pretty


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
