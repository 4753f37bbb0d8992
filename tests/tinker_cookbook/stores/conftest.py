import uuid
from collections.abc import Iterator

import fsspec
import pytest

from tinker_cookbook.stores import FsspecStorage, LocalStorage, Storage, _fsspec


@pytest.fixture(autouse=True)
def nothing_held_after_a_test() -> Iterator[None]:
    yield
    _fsspec._flush_at_exit()


@pytest.fixture(params=["local", "memory", "fsspec file"])
def storage(request, tmp_path) -> Storage:
    """The same behaviour is asked of all of them."""
    if request.param == "local":
        return LocalStorage(tmp_path)
    if request.param == "memory":
        return FsspecStorage("memory", f"/bucket-{uuid.uuid4().hex}/x")
    return FsspecStorage(fsspec.filesystem("file"), str(tmp_path / "deep"))


@pytest.fixture
def memory_uri() -> str:
    return f"memory://bucket-{uuid.uuid4().hex}/runs/x"
