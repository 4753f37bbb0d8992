import pytest

from tests.tinker_cookbook.fake_service import FakeService
from tests.tinker_cookbook.rl import small_runs
from tinker_cookbook import service
from tinker_cookbook.tokenizer_utils import get_tokenizer, register_tokenizer, unregister_tokenizer


@pytest.fixture
def fake(monkeypatch):
    """Every run of the test is against this service, whose updates are named by the groups they are made of."""
    fake = FakeService(describe=small_runs.places)
    monkeypatch.setattr(service, "connect", lambda *_: fake)
    register_tokenizer(small_runs.MODEL, lambda: get_tokenizer("tinker-engine/tiny-chat"))
    yield fake
    unregister_tokenizer(small_runs.MODEL)
