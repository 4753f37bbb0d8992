import sys

import pytest


@pytest.fixture(autouse=True)
def _no_pandas(monkeypatch):
    """Rows are lists of dicts in these tests, also where pandas is installed."""
    monkeypatch.setitem(sys.modules, "pandas", None)
