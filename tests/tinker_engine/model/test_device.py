import pytest
import torch

from tinker_engine.errors import InputError
from tinker_engine.model.device import pick_device, pick_dtype


def _machine(monkeypatch: pytest.MonkeyPatch, *, cuda: int = 0, mps: bool = False) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"), [(2, False, "cuda"), (0, True, "mps"), (0, False, "cpu")]
)
def test_the_fastest_device_is_the_default(monkeypatch, cuda, mps, expected):
    _machine(monkeypatch, cuda=cuda, mps=mps)
    assert pick_device(None) == torch.device(expected)


def test_a_device_can_be_asked_for(monkeypatch):
    _machine(monkeypatch, cuda=2)
    assert pick_device("cuda:1") == torch.device("cuda:1")
    assert pick_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "cuda:2", "cuda:x", "mps", ""])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(monkeypatch, name):
    _machine(monkeypatch, cuda=2)
    with pytest.raises(InputError, match="cuda, cpu"):
        pick_device(name)


def test_default_dtype_follows_the_device():
    assert pick_dtype(torch.device("cpu")) == torch.float32
    assert pick_dtype(torch.device("mps")) == torch.float32
    assert pick_dtype(torch.device("cuda")) == torch.bfloat16


def test_a_dtype_can_be_asked_for():
    assert pick_dtype(torch.device("cpu"), "float64") == torch.float64
    with pytest.raises(InputError, match="float32, bfloat16, float16, float64"):
        pick_dtype(torch.device("cpu"), "int8")
    with pytest.raises(InputError, match="mps"):
        pick_dtype(torch.device("mps"), "float64")
