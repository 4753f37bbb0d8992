import subprocess
import sys

import pytest

from tinker_engine.model import tiny

TORCH_FREE = [
    "tinker_engine.config",
    "tinker_engine.errors",
    "tinker_engine.model.folders",
    "tinker_engine.model.spec",
    "tinker_engine.model.tokenizer",
    "tinker_engine.wire.body",
    "tinker_engine.wire.fields",
]


def torch_after(code: str) -> str:
    script = f"import sys\n{code}\nprint('torch' in sys.modules)"
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


@pytest.mark.parametrize("module", TORCH_FREE)
def test_what_the_http_process_needs_comes_without_torch(module: str):
    assert torch_after(f"import {module}") == "False"


def test_a_model_can_be_looked_up_without_torch():
    code = f"""
from tinker_engine.errors import ModelError
from tinker_engine.model.folders import installed_models, resolve
from tinker_engine.model.spec import ModelSpec
from tinker_engine.model.tokenizer import Tokenizer, eos_token_ids
folder = resolve({tiny.NAME!r})
assert installed_models()[0] == ({tiny.NAME!r}, folder)
spec, tokenizer = ModelSpec.from_folder(folder), Tokenizer.from_folder(folder)
assert max(eos_token_ids(folder, tokenizer)) < spec.vocab_size
try:
    resolve("no-such-organisation/no-such-model")
except ModelError:
    pass
"""
    assert torch_after(code) == "False"
