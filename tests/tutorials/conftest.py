import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tinker_engine import embedded

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """As of a user who configured no server. One engine runs already, so that scripts join it at once."""
    home = tmp_path_factory.mktemp("home")
    ours = ("TINKER_BASE_URL", "TINKER_API_KEY", "HF_ENDPOINT")
    variables = {name: value for name, value in os.environ.items() if name not in ours}
    engine = embedded.start_or_join(home / "data")
    try:
        yield variables | {
            "TINKER_ENGINE_HOME": str(home),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [variables.get("PYTHONPATH")])]),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), variables.get("PATH", os.defpath)]),
            "TMPDIR": str(tmp_path_factory.mktemp("temporary")),
        }
    finally:
        engine.stop()
