"""`tinker-engine plan`: will it fit, and how fast will it be?"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import torch

from tinker_engine.commands.table import aligned, short, size
from tinker_engine.errors import InputError
from tinker_engine.model.device import pick_device, pick_dtype
from tinker_engine.model.folders import resolve
from tinker_engine.model.load import stays_mapped
from tinker_engine.model.memory import free_bytes
from tinker_engine.model.spec import ModelSpec
from tinker_engine.planning.calibration import Calibration, calibrate
from tinker_engine.planning.prediction import (
    REFERENCE,
    Memory,
    Speed,
    predict_memory,
    predict_speed,
    smaller,
)
from tinker_engine.planning.trial import Trial, measured
from tinker_engine.planning.workload import Workload

NOTED_BUSY = 0.15


@dataclass(frozen=True)
class Prediction:
    spec: ModelSpec
    calibration: Calibration
    memory: Memory
    speed: Speed
    free: int
    busy: float  # share of the processor that others used just before
    dtype: torch.dtype
    device: torch.device


def plan(model: str, workload: Workload, *, measure: bool = False) -> int:
    """0 if it fits, else 1."""
    prediction = predict(model, workload)
    memory = prediction.memory
    for line in [*_memory_table(memory, workload), "", *_speed_table(prediction, workload), ""]:
        print(line)
    print(verdict(prediction, workload))
    if prediction.busy > NOTED_BUSY:
        print(f"other programs use {prediction.busy:.0%} of the processor: next to them it will be slower")
    if memory.peak > prediction.free:
        return 1
    if measure:
        trial = measured(model, workload)
        for line in ["", *comparison(prediction, trial)]:
            print(line)
    return 0


def predict(model: str, workload: Workload) -> Prediction:
    folder = resolve(model)
    spec = ModelSpec.from_folder(folder)
    if workload.tokens > spec.max_context:
        raise InputError("--tokens", f"{model} reads at most {spec.max_context}, got {workload.tokens}")
    device = pick_device()
    dtype = pick_dtype(device)
    process = _own_bytes()
    free = free_bytes(device)
    # A config alone can be planned with; then nobody knows how the weights will be stored.
    mapped = any(folder.glob("*.safetensors")) and stays_mapped(folder, dtype=dtype, device=device)
    memory = predict_memory(
        spec, workload, dtype=dtype, device=device, free=free, process=process, mapped=mapped
    )
    busy = psutil.cpu_percent(interval=0.5) / 100
    calibration = calibrate(spec, REFERENCE, dtype=dtype, device=device, on_progress=_say)
    speed = predict_speed(spec, workload, memory, calibration, dtype=dtype)
    return Prediction(spec, calibration, memory, speed, free, busy, dtype, device)


def verdict(prediction: Prediction, workload: Workload) -> str:
    memory, free = prediction.memory, prediction.free
    needs = f"needs {size(memory.peak)} of {size(free)} free"
    if memory.peak <= free:
        return f"fits: {needs}"
    change = smaller(
        prediction.spec,
        workload,
        dtype=prediction.dtype,
        device=prediction.device,
        free=free,
        process=memory.process,
    )
    if change is not None:
        return f"does not fit: {needs}; --{change[0].replace('_', '-')} {change[1]} would fit"
    alone = memory.process + memory.weights + memory.packed
    return (
        f"does not fit: {needs}, of which the model alone {size(alone)}; take a smaller model, or free memory "
        "(no single smaller option is enough)"
    )


def comparison(prediction: Prediction, trial: Trial) -> list[str]:
    speed, real = prediction.speed, trial.speed
    rows = [
        _compared("peak memory", prediction.memory.resident, trial.peak_bytes, size),
        _compared("training step", speed.training_seconds, real.training_seconds, _seconds),
        _compared("training tokens/s", speed.training_tokens, real.training_tokens, _rate),
        _compared("sampling tokens/s", speed.sampling_tokens, real.sampling_tokens, _rate),
    ]
    return aligned([("", "predicted", "measured", "off by"), *rows], right=(1, 2, 3))


def off_by(predicted: float, real: float) -> float:
    """+0.1: the prediction was a tenth too high."""
    return predicted / real - 1


def _compared(name: str, predicted: float, real: float, shown: Callable[[float], str]) -> tuple[str, ...]:
    return name, shown(predicted), shown(real), f"{off_by(predicted, real):+.0%}"


def _memory_table(memory: Memory, workload: Workload) -> list[str]:
    cut = f"{memory.micro_batches} micro-batch{'es' if memory.micro_batches > 1 else ''}"
    cut += ", recomputed in the backward pass" if memory.recompute else ""
    rows = [
        ("base weights", size(memory.weights), ""),
        ("packed copies of them", size(memory.packed), "for speed on a CPU"),
        ("adapter, gradients, moments", size(memory.adapter), f"rank {workload.rank}"),
        ("training: activations", size(memory.activations), cut),
        ("training: logits", size(memory.head), "a chunk at a time"),
        ("optimizer step", size(memory.optimizer), ""),
        ("sampling: cache, snapshot", size(memory.cache), f"{workload.samples} samples"),
        ("Python and torch", size(memory.process), ""),
        ("peak", size(memory.peak), "training, optimizer and sampling take turns"),
    ]
    return aligned([("MEMORY", "", ""), *rows], right=(1,))


def _speed_table(prediction: Prediction, workload: Workload) -> list[str]:
    speed, limits = prediction.speed, prediction.calibration.limits
    step = f"{workload.batch} × {workload.tokens} tokens"
    samples = f"{workload.samples} × {workload.new_tokens} new tokens after a prompt of {workload.prompt}"
    rows = [
        (
            "matrix products",
            f"{short(limits.gemm_flops)}FLOP/s",
            f"measured, {prediction.dtype}".replace("torch.", ""),
        ),
        ("memory bandwidth", f"{size(limits.bandwidth)}/s", "measured"),
        (
            "training",
            f"{_rate(speed.training_tokens)} tokens/s",
            f"{_seconds(speed.training_seconds)} a step of {step}",
        ),
        (
            "sampling",
            f"{_rate(speed.sampling_tokens)} tokens/s",
            f"{_seconds(speed.sampling_seconds)} for {samples}",
        ),
    ]
    return aligned([("SPEED", "", ""), *rows], right=(1,))


def _seconds(value: float) -> str:
    return f"{value:,.2f} s" if value < 10 else f"{value:,.0f} s"


def _rate(value: float) -> str:
    return f"{value:,.1f}" if value < 10 else f"{value:,.0f}"


def _say(message: str) -> None:
    print(f"{message} …", file=sys.stderr)


def _own_bytes() -> int:
    """What Python and torch take before there is a model, as in any process of the engine."""
    return psutil.Process().memory_info().rss
