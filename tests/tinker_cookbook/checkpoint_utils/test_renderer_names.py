"""The renderer of a checkpoint, in the metadata of its run."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tinker_cookbook.checkpoint_utils.fakes import not_found
from tinker_cookbook import checkpoint_utils, service
from tinker_cookbook.checkpoint_utils import (
    add_renderer_name_to_user_metadata,
    check_renderer_name_for_checkpoint,
    get_renderer_name_from_checkpoint,
    resolve_renderer_name_from_checkpoint_or_default,
)
from tinker_cookbook.exceptions import ConfigurationError

PATH = "tinker://run/weights/x"


def server_with(metadata: dict[str, str] | Exception | None) -> Any:
    async def run(path: str):
        assert path == PATH
        if isinstance(metadata, Exception):
            raise metadata
        return SimpleNamespace(user_metadata=metadata)

    rest = SimpleNamespace(get_training_run_by_tinker_path_async=run)
    return SimpleNamespace(create_rest_client=lambda: rest)


def test_into_the_metadata():
    metadata = {"mine": "x"}
    add_renderer_name_to_user_metadata(metadata, None)
    assert metadata == {"mine": "x"}
    add_renderer_name_to_user_metadata(metadata, "chatml")
    assert metadata == {"mine": "x", "renderer_name": "chatml"}


@pytest.mark.parametrize(
    ("metadata", "name"),
    [
        ({"renderer_name": "chatml"}, "chatml"),
        ({}, None),
        (None, None),
        (not_found(), None),
        (ValueError("no path"), None),
    ],
)
def test_out_of_the_metadata(metadata, name, caplog):
    assert get_renderer_name_from_checkpoint(server_with(metadata), PATH) == name
    assert bool(caplog.records) == isinstance(metadata, Exception)


@pytest.mark.parametrize(
    ("explicit", "path", "stored", "name"),
    [
        ("mine", PATH, "chatml", "mine"),
        (None, PATH, "chatml", "chatml"),
        (None, PATH, None, "recommended for m"),
        (None, None, "chatml", "recommended for m"),
    ],
)
def test_what_is_asked_for_then_the_checkpoint_then_the_model(monkeypatch, explicit, path, stored, name):
    asked: list[Any] = []
    metadata = {"renderer_name": stored} if stored else {}
    monkeypatch.setattr(service, "connect", lambda url: asked.append(url) or server_with(metadata))
    monkeypatch.setattr(
        "tinker_cookbook.model_info.get_recommended_renderer_name", lambda model: f"recommended for {model}"
    )
    found = resolve_renderer_name_from_checkpoint_or_default(
        model_name="m", explicit_renderer_name=explicit, load_checkpoint_path=path, base_url="http://here"
    )
    assert found == name
    assert asked == (["http://here"] if explicit is None and path else [])


@pytest.mark.parametrize(("stored", "warned"), [("chatml", False), ("role_colon", True), (None, False)])
def test_another_renderer_is_a_warning(stored, warned, caplog):
    caplog.set_level(logging.INFO)
    metadata = {"renderer_name": stored} if stored else {}
    check_renderer_name_for_checkpoint(server_with(metadata), PATH, "chatml")
    assert [record.levelname for record in caplog.records] == ["WARNING" if warned else "INFO"]


def test_inside_a_loop_the_awaitable_one_is_named():
    async def inside():
        with pytest.raises(ConfigurationError, match="await get_renderer_name_from_checkpoint_async"):
            get_renderer_name_from_checkpoint(server_with({}), PATH)
        return await checkpoint_utils.get_renderer_name_from_checkpoint_async(server_with({}), PATH)

    assert asyncio.run(inside()) is None
