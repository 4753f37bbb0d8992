from collections.abc import Iterator

import pytest

from tests.tinker_engine.store.postgres import running_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    with running_postgres() as url:
        yield url
