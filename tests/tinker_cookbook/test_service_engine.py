"""`connect()` and `tinker-engine run` with the real engine, each in a process of its own, as users have it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.tinker_engine.engines import ends

ROOT = Path(__file__).resolve().parents[2]

TRAIN_AND_SAMPLE = """
from tinker_cookbook.service import connect
from tinker import types

service = connect()
client = service.create_lora_training_client("tinker-engine/tiny-chat", rank=4)
tokens = [5, 6, 7, 8, 9] * 4
inputs = {"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)}
datum = types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)
losses = []
for _ in range(4):
    gradient = client.forward_backward([datum], "cross_entropy")
    client.optim_step(types.AdamParams(learning_rate=1e-3)).result()
    losses.append(gradient.result().metrics["loss:sum"])
sampler = client.save_weights_and_get_sampling_client()
answer = sampler.sample(types.ModelInput.from_ints(tokens), 2, types.SamplingParams(max_tokens=3)).result()
"""

REPORT = (
    TRAIN_AND_SAMPLE
    + """
import json
from tinker_engine import config
engine = json.loads((config.data_dir() / "engine.json").read_text())
print(json.dumps([losses, len(answer.sequences), engine["pid"]]))
"""
)

DIES = (
    TRAIN_AND_SAMPLE
    + """
import json, os, signal
from tinker_engine import config
engine = json.loads((config.data_dir() / "engine.json").read_text())
os.kill(engine["pid"], signal.SIGKILL)
try:
    client.forward_backward([datum], "cross_entropy").result()
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""
)


def python(script: str, home: Path, *, timeout: float = 120) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env=clean(home),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


def clean(home: Path) -> dict[str, str]:
    """The environment of somebody who has configured nothing."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TINKER_", "HF_"))}
    return kept | {"TINKER_ENGINE_HOME": str(home), "PYTHONPATH": str(ROOT)}


def test_a_script_without_any_configuration_trains_and_samples(tmp_path):
    losses, samples, pid = json.loads(python(REPORT, tmp_path))
    assert losses[-1] < losses[0]
    assert samples == 2
    assert ends(pid), "the engine ends with its parent"
    assert not (tmp_path / "data" / "engine.json").exists(), "and cleanly"


def test_a_dead_engine_is_reported_with_its_log_and_not_after_minutes(tmp_path):
    """The time-out is a fifth of what the SDK would retry."""
    said = python(DIES, tmp_path, timeout=70)
    assert "died" in said
    assert "SIGKILL" in said
    assert str(tmp_path / "data" / "engine.log") in said


def test_the_script_of_the_readme_runs_under_the_engine(tmp_path):
    """It knows `import tinker` alone."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    (script,) = (block for block in blocks if block.startswith("import tinker"))
    assert len(script.splitlines()) <= 15
    (tmp_path / "script.py").write_text(script)
    ran = subprocess.run(
        [sys.executable, "-m", "tinker_engine", "run", "--", sys.executable, str(tmp_path / "script.py")],
        env=clean(tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    losses = [float(line) for line in ran.stdout.splitlines() if re.fullmatch(r"[\d.]+", line)]
    assert losses[-1] < losses[0] / 2
