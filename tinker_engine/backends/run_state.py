"""A run's weights and optimizer on disk: a PEFT adapter, and the moments beside it."""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from tinker_engine.errors import DamagedError, InputError
from tinker_engine.model.lora import Adapter, LoraSpec
from tinker_engine.model.lora_io import load_adapter, write_adapter
from tinker_engine.store.folders import verify
from tinker_engine.training.trainer import LoraRun

OPTIMIZER = "optimizer.safetensors"


@dataclass(frozen=True)
class Captured:
    """A copy of a run that training goes on without."""

    adapter: Adapter
    first: Tensor
    second: Tensor
    steps: int

    @classmethod
    def of(cls, run: LoraRun) -> "Captured":
        optimizer = run.optimizer
        return cls(run.adapter.snapshot(), optimizer.first.clone(), optimizer.second.clone(), optimizer.steps)

    def write(self, folder: Path, base_model: str) -> None:
        write_adapter(self.adapter, folder, base_model)
        moments = {"first": self.first.cpu(), "second": self.second.cpu()}
        save_file(moments | {"steps": torch.tensor(self.steps)}, folder / OPTIMIZER)


def load_state(run: LoraRun, folder: Path, *, with_optimizer: bool) -> None:
    """Make the run what was saved; without the optimizer, its moments start anew. On any error it is as before."""
    verify(folder)
    flat = run.adapter.flat
    loaded = load_adapter(folder, run.adapter.model, device=flat.device, dtype=flat.dtype)
    if shape(loaded.lora) != shape(run.adapter.lora):
        raise InputError(
            "path",
            f"holds a LoRA of {describe(loaded.lora)}; this model has {describe(run.adapter.lora)}. Create the "
            "model with the same settings, e.g. with create_training_client_from_state",
        )
    first, second, steps = _moments(folder, flat) if with_optimizer else (None, None, 0)
    flat.copy_(loaded.flat)
    run.grad.zero_()
    for moment, value in ((run.optimizer.first, first), (run.optimizer.second, second)):
        moment.zero_() if value is None else moment.copy_(value)
    run.optimizer.steps = steps


def shape(lora: LoraSpec) -> tuple[int, bool, bool, bool]:
    return lora.rank, lora.train_attn, lora.train_mlp, lora.train_unembed


def describe(lora: LoraSpec) -> str:
    parts = {"attention": lora.train_attn, "MLP": lora.train_mlp, "unembedding": lora.train_unembed}
    return f"rank {lora.rank} on {', '.join(name for name, trained in parts.items() if trained)}"


def _moments(folder: Path, like: Tensor) -> tuple[Tensor, Tensor, int]:
    path = folder / OPTIMIZER
    if not path.is_file():
        raise InputError(
            "path", "holds weights without an optimizer; load it without one, or save with save_state"
        )
    try:
        tensors = load_file(path)
        first, second, steps = tensors["first"], tensors["second"], int(tensors["steps"])
    except (SafetensorError, KeyError) as error:
        raise DamagedError(f"{path} cannot be read: {error}") from error
    if first.shape != like.shape or second.shape != like.shape:
        raise DamagedError(f"{path} holds moments of another adapter")
    return first, second, steps
