"""What all tests of the cookbook share."""

import logging

import pytest


@pytest.fixture(autouse=True)
def _logging_as_before():
    """A run puts its own handlers in place of pytest's."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in set(root.handlers) - set(handlers):
        handler.close()
    root.handlers, root.level = handlers, level
