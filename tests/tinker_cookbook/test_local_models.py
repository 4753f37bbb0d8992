import json
import sys

import pytest

from tinker_cookbook import local_models
from tinker_cookbook.exceptions import ConfigurationError
from tinker_engine.model import tiny


@pytest.fixture
def no_engine(monkeypatch):
    for name in ("tinker_engine.errors", "tinker_engine.model", "tinker_engine.model.folders"):
        monkeypatch.setitem(sys.modules, name, None)


def test_the_engine_is_asked_where_its_models_are():
    assert local_models.find_folder(tiny.NAME) == tiny.FOLDER
    assert local_models.find_folder(f"{tiny.NAME}:peft:1024") == tiny.FOLDER


def test_a_model_that_was_pulled_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("TINKER_ENGINE_HOME", str(tmp_path))
    folder = tmp_path / "models" / "someone--model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert local_models.find_folder("someone/model") == folder


@pytest.mark.usefixtures("no_engine")
def test_folders_need_no_engine(tmp_path):
    assert local_models.find_folder(str(tmp_path)) == tmp_path
    assert local_models.find_folder(tiny.NAME) is None


def test_a_folder_with_a_colon_in_its_name_keeps_it(tmp_path):
    folder = tmp_path / "run:3"
    folder.mkdir()
    assert local_models.without_variant(str(folder)) == str(folder)
    assert local_models.find_folder(str(folder)) == folder


def test_a_name_of_nothing_is_not_found():
    assert local_models.find_folder("nobody/nothing") is None
    assert local_models.find_folder("nothing") is None


@pytest.mark.parametrize(
    ("field", "template"),
    [
        ("one", "one"),
        ([{"name": "tool_use", "template": "x"}, {"name": "default", "template": "y"}], "y"),
        (None, None),
    ],
)
def test_a_chat_template_may_be_in_the_tokenizer_config(tmp_path, field, template):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": field} if field else {}))
    assert local_models.read_chat_template(tmp_path) == template


def test_a_chat_template_in_a_file_of_its_own_comes_first(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "old"}))
    (tmp_path / "chat_template.jinja").write_text("new")
    assert local_models.read_chat_template(tmp_path) == "new"


@pytest.mark.parametrize(("text", "words"), [("{", "not valid JSON"), ("[]", "holds a list")])
def test_a_damaged_config_is_named(tmp_path, text, words):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigurationError, match=words) as caught:
        local_models.read_config(tmp_path)
    assert str(tmp_path / "config.json") in str(caught.value)
