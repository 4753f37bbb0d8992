from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server import Server, running_server
from tests.tinker_engine.api.raw import Raw

KEYS = {"alice": "tml-alice-0123456789abcdef", "bob": "tml-bob-0123456789abcdefgh"}


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory) -> Iterator[Server]:
    """For tests that need a server and leave it as it is. It knows two keys."""
    folder: Path = tmp_path_factory.mktemp("shared")
    (folder / "keys").write_text("# who may\n" + "".join(f"{owner}:{key}\n" for owner, key in KEYS.items()))
    with running_server(folder, "--keys", str(folder / "keys")) as server:
        yield server


@pytest.fixture
def alice(shared_server: Server) -> Raw:
    return Raw(shared_server.url, KEYS["alice"])


@pytest.fixture
def bob(shared_server: Server) -> Raw:
    return Raw(shared_server.url, KEYS["bob"])
