"""Adapters on disk, in PEFT's format: `adapter_model.safetensors` with `adapter_config.json`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from tinker_engine.errors import ModelError
from tinker_engine.model.lora import LORA_ALPHA, Adapter, LoraSpec, lora_layers
from tinker_engine.model.spec import ModelSpec
from tinker_engine.model.staging import locked, staged

_WEIGHTS, _CONFIG = "adapter_model.safetensors", "adapter_config.json"
_PREFIX = "base_model.model."

# Parts of PEFT's LoRA that would change the function and that we do not compute.
_REFUSED = (
    "use_dora",
    "lora_bias",
    "modules_to_save",
    "rank_pattern",
    "alpha_pattern",
    "layers_to_transform",
)


def save_adapter(adapter: Adapter, folder: Path, base_model: str) -> None:
    """Write the adapter to `folder`, which appears whole or not at all."""
    with locked(folder), staged(folder) as staging:
        write_adapter(adapter, staging, base_model)


def write_adapter(adapter: Adapter, folder: Path, base_model: str) -> None:
    """Write the adapter's two files into an existing folder."""
    tensors: dict[str, Tensor] = {}
    for name, a_RK, b_NR in adapter.target_weights():
        tensors[f"{_PREFIX}{name}.lora_A.weight"] = a_RK.cpu().contiguous()
        tensors[f"{_PREFIX}{name}.lora_B.weight"] = b_NR.cpu().contiguous()
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": adapter.lora.rank,
        "lora_alpha": LORA_ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "inference_mode": True,
        "target_modules": sorted({name.rsplit(".", 1)[-1] for name, _, _ in adapter.target_weights()}),
    }
    save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
    (folder / _CONFIG).write_text(json.dumps(config, indent=2) + "\n")


def load_adapter(
    folder: Path, model: ModelSpec, *, device: torch.device, dtype: torch.dtype = torch.float32
) -> Adapter:
    """Read an adapter that we or PEFT saved. Another alpha is folded into B, so the function is the same.

    A group of targets that is present in part (PEFT's default is q and v alone) gets zeros for the rest:
    with A and B both zero these have no effect and, having no gradient, never get one.
    """
    config = _read_config(folder)
    tensors = _read_tensors(folder)
    targets = {name.removesuffix(".lora_A.weight") for name in tensors if name.endswith(".lora_A.weight")}
    rank = config["r"]
    adapter = Adapter(model, _groups(targets, rank), device=device, dtype=dtype)
    factor = _scale(config, rank) / adapter.lora.scale
    for name, a_RK, b_NR in adapter.target_weights():
        if name in targets:
            _fill(a_RK, tensors, f"{name}.lora_A.weight", 1.0)
            _fill(b_NR, tensors, f"{name}.lora_B.weight", factor)
    if tensors:
        known = [name for layer in lora_layers(model, LoraSpec(1)) for name, _ in layer.targets]
        raise ModelError(
            f"{folder / _WEIGHTS} holds tensors for which the model has no target: {', '.join(sorted(tensors)[:3])}; "
            f"targets are {', '.join(known[:7])}, … and lm_head"
        )
    return adapter


def _fill(target: Tensor, tensors: dict[str, Tensor], name: str, factor: float) -> None:
    value = tensors.pop(name, None)
    if value is None:
        raise ModelError(f"the adapter lacks the tensor {name}")
    if value.shape != target.shape:
        raise ModelError(
            f"the adapter's {name} has shape {tuple(value.shape)}, expected {tuple(target.shape)}"
        )
    target.copy_(value * factor if factor != 1 else value)


def _groups(targets: set[str], rank: int) -> LoraSpec:
    return LoraSpec(
        rank,
        train_attn=any(".self_attn." in name for name in targets),
        train_mlp=any(".mlp." in name for name in targets),
        train_unembed="lm_head" in targets,
    )


def _scale(config: Mapping[str, Any], rank: int) -> float:
    return config["lora_alpha"] / (rank**0.5 if config.get("use_rslora") else rank)


def _read_config(folder: Path) -> Mapping[str, Any]:
    path = folder / _CONFIG
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ModelError(f"{path} is missing: {folder} is no adapter in PEFT's format") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise ModelError(f"{path} does not describe a LoRA adapter (peft_type LORA)")
    if present := [name for name in _REFUSED if config.get(name)]:
        raise ModelError(
            f"{path} uses {', '.join(present)}, which is not supported; save a plain LoRA adapter"
        )
    if not isinstance(config.get("r"), int) or config["r"] < 1 or "lora_alpha" not in config:
        raise ModelError(f"{path} must have a positive r and a lora_alpha")
    return config


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    path = folder / _WEIGHTS
    try:
        tensors = load_file(path)
    except FileNotFoundError as error:
        raise ModelError(f"{path} is missing") from error
    except SafetensorError as error:
        raise ModelError(f"{path} is damaged: {error}") from error
    if not any(name.endswith(".lora_A.weight") for name in tensors):
        raise ModelError(f"{path} holds no LoRA weights")
    return {name.removeprefix(_PREFIX): tensor for name, tensor in tensors.items()}
