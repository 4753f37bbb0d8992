"""Where there is no compiler, torch must do all of it: the tests of the model once more, without our kernels."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ENGINE = Path(__file__).parents[1]
FILES = [
    "model/test_lora.py",
    "sampling/test_agreement.py",
    "sampling/test_batching.py",
    "sampling/test_same_bits.py",
    "training/test_trainer.py",
]


@pytest.mark.long
@pytest.mark.parametrize("file", FILES)
def test_without_our_kernels(file: str):
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(ENGINE / file)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "TINKER_ENGINE_NATIVE": "0"},
    )
    assert result.returncode == 0, result.stdout[-3000:]
