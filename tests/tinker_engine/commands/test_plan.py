import shutil
from dataclasses import replace
from math import prod

import pytest
import torch

from tinker_engine.cli import main
from tinker_engine.errors import EngineError, InputError
from tinker_engine.model import tiny
from tinker_engine.model.load import expected_shapes
from tinker_engine.model.lora import LoraSpec, parameter_count
from tinker_engine.model.spec import ModelSpec
from tinker_engine.planning.calibration import Calibration
from tinker_engine.planning.cost import training_step
from tinker_engine.planning.limits import Limits
from tinker_engine.planning.prediction import (
    REFERENCE,
    TRAINING_EFFICIENCY,
    Memory,
    predict_memory,
    predict_speed,
    smaller,
)
from tinker_engine.planning.trial import measured
from tinker_engine.planning.workload import Workload
from tinker_engine.training.memory import activation_bytes

CPU, FP32 = torch.device("cpu"), torch.float32
SMALL = ["--batch", "2", "--tokens", "32", "--samples", "2", "--new-tokens", "4", "--rank", "4"]
INSTANT = Calibration(Limits(1e11, 1e30), shape=1.0, training_overhead=0.0, decode_overhead=0.0)


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return ModelSpec.from_folder(tiny.FOLDER)


@pytest.fixture
def calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that are not about speed."""
    monkeypatch.setattr("tinker_engine.commands.plan.calibrate", lambda *_, **__: INSTANT)


def predicted(spec: ModelSpec, workload: Workload, free: int = 10**11) -> Memory:
    return predict_memory(spec, workload, dtype=FP32, device=CPU, free=free, process=0)


def test_memory_of_the_parts(spec):
    workload = Workload()
    memory = predicted(spec, workload)
    adapter = 4 * parameter_count(spec, LoraSpec(rank=32))
    assert memory.weights == 4 * sum(map(prod, expected_shapes(spec).values()))
    assert (memory.adapter, memory.optimizer) == (5 * adapter, 2 * adapter)
    assert (memory.micro_batches, memory.recompute) == (2, False)  # 8 sequences of 512, 2,048 tokens at most
    turns = max(memory.activations + memory.head, memory.optimizer, memory.cache)
    assert memory.peak == memory.weights + memory.packed + memory.adapter + turns


def test_half_precision_halves_the_weights_and_packs_nothing(spec):
    memory = predict_memory(spec, Workload(), dtype=torch.bfloat16, device=CPU, free=10**11, process=0)
    assert memory.packed == 0
    assert 2 * memory.weights == predicted(spec, Workload()).weights


def test_a_batch_is_cut_as_the_trainer_cuts_it(spec):
    token = activation_bytes(spec, 32, FP32, recompute=False)
    room_for_three = 2 * 3 * 512 * token  # half of what is free
    memory = predicted(spec, Workload(), room_for_three)
    assert memory.micro_batches == 3  # 3 + 3 + 2 sequences
    assert memory.activations == pytest.approx(1.15 * 3 * 512 * token, rel=1e-6)
    assert predicted(spec, replace(Workload(), batch=3), room_for_three).micro_batches == 1


def test_a_sequence_too_long_for_the_rest_is_recomputed(spec):
    token = activation_bytes(spec, 32, FP32, recompute=False)
    memory = predicted(spec, Workload(batch=2), 2 * 500 * token)
    assert (memory.micro_batches, memory.recompute) == (2, True)


def test_what_would_fit_is_named_and_fits(spec):
    workload = Workload(batch=64, samples=200, new_tokens=512, tokens=1024)
    named: set[str] = set()
    for free in range(20_000_000, 400_000_000, 10_000_000):
        change = smaller(spec, workload, dtype=FP32, device=CPU, free=free, process=0)
        if predicted(spec, workload, free).peak > free and change is not None:
            assert predicted(spec, replace(workload, **dict([change])), free).peak <= free
            named.add(change[0])
    assert "samples" in named
    assert smaller(spec, workload, dtype=FP32, device=CPU, free=10**6, process=0) is None


def test_the_model_that_the_efficiency_is_known_of_reaches_it():
    workload = Workload(batch=2, tokens=64)
    flops = training_step(REFERENCE, LoraSpec(rank=32), 2, 64).flops
    speed = predict_speed(REFERENCE, workload, predicted(REFERENCE, workload), INSTANT, dtype=FP32)
    assert speed.training_seconds == pytest.approx(flops / (1e11 * TRAINING_EFFICIENCY))
    assert speed.training_tokens == pytest.approx(128 / speed.training_seconds)


def test_a_narrow_model_reaches_less(spec):
    workload = Workload(batch=2, tokens=64)
    flops = training_step(spec, LoraSpec(rank=32), 2, 64).flops
    speed = predict_speed(spec, workload, predicted(spec, workload), INSTANT, dtype=FP32)
    assert speed.training_seconds > flops / (1e11 * TRAINING_EFFICIENCY)


def test_every_step_and_layer_has_a_fixed_cost(spec):
    workload = Workload(tokens=64, samples=1, new_tokens=10)
    memory = predicted(spec, workload)
    slow = replace(INSTANT, training_overhead=1.0, decode_overhead=2.0)
    fast = predict_speed(spec, workload, memory, INSTANT, dtype=FP32)
    speed = predict_speed(spec, workload, memory, slow, dtype=FP32)
    assert speed.training_seconds - fast.training_seconds == pytest.approx(1.0 * spec.num_layers)
    assert speed.sampling_seconds - fast.sampling_seconds == pytest.approx(10 * 2.0 * spec.num_layers)


@pytest.mark.parametrize("name", ["rank", "batch", "tokens", "samples", "new_tokens"])
def test_nothing_is_refused(name):
    with pytest.raises(InputError, match=name.replace("_", "-")):
        Workload(**{name: 0})


def test_predicted_memory_is_close_to_what_is_used(spec):
    workload = Workload(batch=4, tokens=512, samples=4, new_tokens=8)
    bare = 240_000_000  # Python and torch
    memory = predict_memory(spec, workload, dtype=FP32, device=CPU, free=10**11, process=bare, mapped=True)
    assert memory.resident == pytest.approx(measured(tiny.NAME, workload).peak_bytes, rel=0.3)


def test_a_trial_that_fails_says_so():
    with pytest.raises(EngineError, match="exit code"):
        measured("no/such-model", Workload(batch=1, tokens=8))


def test_plan_and_measure_the_tiny_model(capsys):
    assert main(["plan", tiny.NAME, *SMALL, "--measure"]) == 0
    shown = capsys.readouterr().out
    for part in (
        "base weights",
        "peak",
        "training",
        "sampling",
        "fits: needs",
        "predicted",
        "measured",
        "off by",
    ):
        assert part in shown


@pytest.mark.usefixtures("calibrated")
def test_a_config_is_enough_to_plan(tmp_path, capsys):
    shutil.copy(tiny.FOLDER / "config.json", tmp_path)
    assert main(["plan", str(tmp_path), *SMALL]) == 0
    assert "fits" in capsys.readouterr().out


@pytest.mark.usefixtures("calibrated")
def test_what_does_not_fit_says_what_would(monkeypatch, capsys):
    monkeypatch.setattr("tinker_engine.commands.plan.free_bytes", lambda _: 450_000_000)
    monkeypatch.setattr("tinker_engine.commands.plan._own_bytes", lambda: 240_000_000)
    assert main(["plan", tiny.NAME, "--tokens", "1024"]) == 1
    assert "does not fit: needs" in (shown := capsys.readouterr().out)
    assert "would fit" in shown
    monkeypatch.setattr("tinker_engine.commands.plan.free_bytes", lambda _: 1_000_000)
    assert main(["plan", tiny.NAME]) == 1
    assert "smaller model" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such/model"], "tinker-engine pull no-such/model"),
        ([tiny.NAME, "--tokens", "5000"], "at most 1024"),
        ([tiny.NAME, "--batch", "0"], "--batch"),
    ],
)
def test_wrong_requests_are_refused_in_one_line(arguments, said, capsys):
    assert main(["plan", *arguments]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""
