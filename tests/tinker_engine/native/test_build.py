import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tinker_engine.native import build

LOGPROBS = """
import torch
from tinker_engine.model.decoder import Decoder
from tinker_engine.model.load import DEFAULT_MODEL, load_model
from tinker_engine.native import ops
from tinker_engine.sampling.sampler import Sampler
from tinker_engine.sampling.types import SampleRequest, SamplingParams

model = load_model(DEFAULT_MODEL)
sampler = Sampler(Decoder(model.spec, model.weights), model.tokenizer, [])
request = SampleRequest(list(range(40, 80)), SamplingParams(max_tokens=20, temperature=0), num_samples=2)
sampled = sampler.sample([request])[0].sequences[1]
print(ops.serves(torch.float32, torch.device("cpu")))
print(*sampled.tokens)
print(*sampled.logprobs)
"""


def test_compiled_once(tmp_path: Path):
    place = compiled_or_skip(tmp_path)
    made = place.stat().st_mtime_ns
    assert build.compiled(tmp_path) == place
    assert place.stat().st_mtime_ns == made
    assert list(tmp_path.iterdir()) == [place]  # and nothing else is left


def compiled_or_skip(folder: Path) -> Path:
    try:
        return build.compiled(folder)
    except build.CompilerError as error:
        pytest.skip(str(error))


def test_without_a_compiler_torch_does_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(build.CompilerError, match="apt install gcc"):
        build.compiled(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert build.library.__wrapped__() is None
    assert "slower" in caplog.text


def test_a_source_that_does_not_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    compiled_or_skip(tmp_path / "good")
    source = tmp_path / "kernels.c"
    source.write_text("this is not C")
    monkeypatch.setattr(build, "SOURCE", source)
    with pytest.raises(build.CompilerError, match="could not compile"):
        build.compiled(tmp_path / "bad")
    assert list((tmp_path / "bad").iterdir()) == []


def logprobs(native: str) -> tuple[str, str, list[float]]:
    result = subprocess.run(
        [sys.executable, "-c", LOGPROBS],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, "TINKER_ENGINE_NATIVE": native},
    )
    serves, tokens, values = result.stdout.splitlines()
    return serves, tokens, [float(value) for value in values.split()]


def test_switched_off_the_model_is_the_same():
    _, tokens, values = logprobs("1")
    serves, same_tokens, close_values = logprobs("0")
    assert serves == "False"
    assert same_tokens == tokens
    assert close_values == pytest.approx(values, abs=1e-5)
