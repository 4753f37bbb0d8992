import dataclasses
import functools
import json
import logging
import threading
from collections import namedtuple
from enum import Enum
from pathlib import Path
from typing import Any

import chz
import numpy as np
import pydantic
import pytest
import torch

from tinker_cookbook.utils import config_dump
from tinker_cookbook.utils.config_dump import dump_config

HERE = __name__


class Mode(Enum):
    FAST = "fast"


@chz.chz
class Builder:
    size: int = 3
    reward: Any = None

    def __call__(self) -> int:
        return self.size

    @classmethod
    def of(cls) -> "Builder":
        return cls()


@chz.chz
class Empty:
    pass


@dataclasses.dataclass
class Settings:
    mode: Mode
    where: Path


class Model(pydantic.BaseModel):
    name: str
    key: pydantic.SecretStr = pydantic.SecretStr("hidden")


class Plain:
    def __init__(self):
        self.x = 1
        self._hidden = object()

    def method(self) -> None: ...


class WithToDict:
    def to_dict(self) -> dict[str, Any]:
        return {"a": {1}}


class Broken:
    def to_dict(self) -> dict[str, Any]:
        raise KeyError("no")


def function(x: int, y: Any = 0) -> Any:
    return x, y


Pair = namedtuple("Pair", "a b")
Loaded = functools.lru_cache(function)


def test_builders_and_callables_can_be_named_and_rebuilt():
    config = Builder(size=4, reward=functools.partial(function, 1, y=Builder()))
    assert dump_config(config) == {
        "__class__": f"{HERE}.Builder",
        "size": 4,
        "reward": {
            "__class__": "functools.partial",
            "func": f"{HERE}:function",
            "args": [1],
            "keywords": {"y": {"__class__": f"{HERE}.Builder", "size": 3, "reward": None}},
        },
    }


def test_functions_without_a_name_say_where_they_stand():
    written = dump_config(lambda: 0)
    line = (lambda: 0).__code__.co_firstlineno - 1
    name = "test_functions_without_a_name_say_where_they_stand.<locals>.<lambda>"
    assert written == f"{HERE}:{name}:{line}"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Empty(), {"__class__": f"{HERE}.Empty"}),
        (
            Settings(Mode.FAST, Path("a") / "b"),
            {"__class__": f"{HERE}.Settings", "mode": "fast", "where": "a/b"},
        ),
        (Model(name="m"), {"__class__": f"{HERE}.Model", "name": "m", "key": "***"}),
        (Plain(), {"__class__": f"{HERE}.Plain", "x": 1}),
        (WithToDict(), {"__class__": f"{HERE}.WithToDict", "a": [1]}),
        (Pair(1, 2), {"__class__": f"{HERE}.Pair", "a": 1, "b": 2}),
        (Builder, f"{HERE}:Builder"),
        (Builder.of, f"{HERE}:Builder.of"),
        (Loaded, f"{HERE}:function"),
        (len, "builtins:len"),
        (json, "json"),
        (range(10**12), "range(0, 1000000000000)"),
        (torch.float32, "torch.float32"),
        ((np.float32(1.5), torch.tensor(2)), [1.5, 2]),
        ({"b", "a"}, ["a", "b"]),
        (float("inf"), "Infinity"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values(value: Any, expected: Any):
    assert dump_config(value) == expected


def test_a_method_brings_its_object():
    assert dump_config(Plain().method) == {
        "__class__": "builtins.method",
        "func": f"{HERE}:Plain.method",
        "self": {"__class__": f"{HERE}.Plain", "x": 1},
    }


def test_cycles_and_crowds_end(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(config_dump, "MAX_OBJECTS", 1000)
    crowd = [Plain() for _ in range(30)]
    for each in crowd:
        each.friends = list(crowd)  # pyright: ignore[reportAttributeAccessIssue]  # 30! ways through
    written = json.dumps(dump_config(crowd[0]))
    assert "<cycle:" in written
    assert "not written" in written
    assert caplog.text.count("more than 1000 objects") == 1


def test_an_object_that_fails_costs_its_own_place_only(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        written = dump_config({"bad": Broken(), "lock": threading.Lock(), "good": 1})
    assert written["bad"].startswith(f"<not written: {HERE}.Broken: KeyError")
    assert "lock" in written["lock"]
    assert written["good"] == 1
    assert "Broken" in caplog.text


def test_secrets_are_not_written():
    config = {
        "api_key": "k",
        "WANDB_API_KEY": "k",
        "hf_token": "k",
        "token": "k",
        "dbPassword": "k",
        "client_secret": "k",
        "base_url": "https://user:k@host/path",
        "nested": [{"access_key": b"k"}],
    }
    written = json.dumps(dump_config(config))
    assert '"k"' not in written
    assert ":k@" not in written
    assert written.count("***") == 8


def test_what_only_sounds_secret_is_written():
    config = {
        "max_tokens": 5,
        "tokenizer": "t",
        "eos_token": "</s>",
        "stop_token": "x",
        "token_ids": [1],
        "key": "weights",
        "api_key": None,
        "password": "",
        "num_secrets": 3,
        "base_url": "https://host:80/a@b",
    }
    assert dump_config(config) == config


def test_main_is_named_as_it_can_be_imported(monkeypatch: pytest.MonkeyPatch):
    class Spec:
        name = "package.train"

    monkeypatch.setattr("__main__.__spec__", Spec())
    monkeypatch.setattr(function, "__module__", "__main__")
    assert dump_config(function) == "package.train:function"
