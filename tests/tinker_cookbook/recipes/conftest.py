import pytest

from tests.server import running_server


@pytest.fixture(scope="session")
def recipe_server(tmp_path_factory):
    """One engine for all recipes."""
    with running_server(tmp_path_factory.mktemp("engine")) as server:
        yield server


@pytest.fixture
def engine(recipe_server, monkeypatch, tmp_path):
    """Recipes find the engine as a user's scripts do, and write where nobody else does."""
    monkeypatch.setenv("TINKER_BASE_URL", recipe_server.url)
    monkeypatch.setenv("TINKER_API_KEY", recipe_server.key)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "examples"))
    return recipe_server
