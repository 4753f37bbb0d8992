import logging
import os
from collections.abc import Generator

import pytest
from hypothesis import settings

from tests.server import Server

# The same examples every time: a change is red only if it is to blame. HYPOTHESIS_PROFILE=default looks further.
settings.register_profile("repeatable", derandomize=True, deadline=None)  # nothing here is timed
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# A client whose server was ended by the test before goes on looking for it, and would speak up in the next test's log.
logging.getLogger("tinker.lib.internal_client_holder").addFilter(
    lambda record: "heartbeat failed" not in record.getMessage()
)

# The SDK's compiled HTTP client has crashed the process of these tests once, in which thousands of clients come and go.
# The tests of the SDK itself (`conformance`) and the long ones do use it.
os.environ.setdefault("TINKER_ENGINE_CLIENT_HTTP", "httpx")

SLOWEST = "test_crash.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, or one process would wait for the other at the end."""
    items.sort(key=lambda item: item.path.name != SLOWEST)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test that used a server is shown with the end of that server's log."""
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, Server):
                report.sections.append(("server", value.log_tail()))
    return report
