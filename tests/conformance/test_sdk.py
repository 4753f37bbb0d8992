"""The installed SDK, unchanged, against a real server process: one test a check."""

from collections.abc import Iterator

import pytest

from tests.conformance.checks import CHECK_SECONDS, CHECKS, unchecked
from tests.conformance.kit import Kit
from tests.conformance.registry import Check
from tests.server import Server, running_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    as_users_have_it = {"TINKER_ENGINE_CLIENT_HTTP": ""}
    with running_server(tmp_path_factory.mktemp("conformance"), environment=as_users_have_it) as server:
        yield server


@pytest.fixture(scope="session")
def kit(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Kit:
    return Kit(server.url, server.key, tmp_path_factory.mktemp("client"))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*experimental")  # what the SDK says of its own
@pytest.mark.timeout(CHECK_SECONDS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_check(check: Check, kit: Kit, server: Server) -> None:
    if not check.exists():
        pytest.skip("absent in this version of the SDK")
    check.run(kit, check.call())


def test_every_method_and_command_has_a_check() -> None:
    assert unchecked() == set()


def test_names_of_checks_are_unique() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
