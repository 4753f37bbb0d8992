"""The losses once more, one token at a time in plain Python, and through another implementation of the model.

Nothing here uses the engine's losses, packing, head or LoRA.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tinker_engine.model.lora import Adapter
from tinker_engine.model.lora_io import save_adapter
from tinker_engine.training.types import Datum

DEFAULTS: dict[str, dict[str, float]] = {
    "cross_entropy": {},
    "importance_sampling": {},
    "ppo": {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
    "cispo": {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0},
    "dro": {"beta": 0.05},
    "gspo": {"clip_low_threshold": 0.9997, "clip_high_threshold": 1.0004},
}


def sequence_loss(loss: str, lp: Tensor, inputs: Mapping[str, Any], config: Mapping[str, float]) -> Tensor:
    """Summed loss of one sequence as an autograd expression of its logprobs."""
    options = DEFAULTS[loss] | dict(config)
    total = torch.zeros((), dtype=lp.dtype)
    if loss == "cross_entropy":
        weights = torch.as_tensor(np.asarray(inputs["weights"]), dtype=lp.dtype)
        return -(weights * lp).sum()
    q = [float(value) for value in inputs["logprobs"]]
    advantages = [float(value) for value in inputs["advantages"]]
    mask = inputs.get("sequence_ratio_mask", advantages)
    marked = [t for t in range(len(q)) if float(mask[t]) != 0]
    mean_gap = sum(lp[t].item() - q[t] for t in marked) / max(1, len(marked))
    for t in range(len(q)):
        ratio = torch.exp(lp[t] - q[t])
        low = float(inputs["clip_low_threshold"][t]) if "clip_low_threshold" in inputs else None
        high = float(inputs["clip_high_threshold"][t]) if "clip_high_threshold" in inputs else None
        low = options.get("clip_low_threshold", 0.0) if low is None else low
        high = options.get("clip_high_threshold", 0.0) if high is None else high
        if loss == "importance_sampling":
            value = -ratio * advantages[t]
        elif loss == "ppo":
            value = -_smaller(ratio * advantages[t], ratio.clamp(low, high) * advantages[t])
        elif loss == "cispo":
            value = -min(max(ratio.item(), low), high) * advantages[t] * lp[t]
        elif loss == "dro":
            value = -(lp[t] * advantages[t] - 0.5 * options["beta"] * (lp[t] - q[t]) ** 2)
        elif loss == "gspo":
            carried = math.exp(mean_gap) * torch.exp(lp[t] - lp[t].item())
            value = -_smaller(carried * advantages[t], carried.clamp(low, high) * advantages[t])
        else:
            raise AssertionError(loss)
        total = total + value * (float(inputs["weights"][t]) if "weights" in inputs else 1.0)
    return total


def _smaller(a: Tensor, b: Tensor) -> Tensor:
    return a if a.item() <= b.item() else b


def peft_gradients(
    reference: PreTrainedModel,
    adapter: Adapter,
    data: list[Datum],
    loss: str,
    config: Mapping[str, float],
    folder: Path,
) -> tuple[float, list[Tensor], dict[str, Tensor]]:
    """Loss, logprobs and LoRA gradients by transformers, PEFT and autograd, one sequence at a time."""
    save_adapter(adapter, folder, "reference")
    model: Any = peft.PeftModel.from_pretrained(
        reference, folder, is_trainable=True, autocast_adapter_dtype=False
    )
    total, logprobs = 0.0, []
    for datum in data:
        logits = model(torch.as_tensor(np.asarray(datum.tokens))[None]).logits[0]
        targets = torch.as_tensor(np.asarray(datum.loss_fn_inputs["target_tokens"]))
        every = torch.log_softmax(logits, -1)
        lp = every.gather(1, targets.view(len(targets), -1)).view(targets.shape)
        value = sequence_loss(loss, lp, datum.loss_fn_inputs, config)
        value.backward()
        total += value.item()
        logprobs.append(lp.detach())
    grads = {
        name.removeprefix("base_model.model.").replace(".default", ""): parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    return total, logprobs, grads


def named_gradients(adapter: Adapter, grad_flat: Tensor) -> dict[str, Tensor]:
    """The engine's flat gradient under PEFT's names."""
    shadow = Adapter(adapter.model, adapter.lora, device=grad_flat.device, dtype=grad_flat.dtype)
    shadow.flat.copy_(grad_flat)
    return {
        f"{name}.lora_{letter}.weight": weight
        for name, a, b in shadow.target_weights()
        for letter, weight in (("A", a), ("B", b))
    }
