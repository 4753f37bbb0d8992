"""The one decoder: the trainer and the sampler run this same forward pass.

Tokens lie on one flat axis T; what belongs together, and which keys a token may see, is the business
of the `attend` callable (packed segments when training, a cache when sampling).

Shapes: T tokens, D model width, H query heads, G key/value heads, E head width.
"""

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tinker_engine.model.linear import FrozenLinear, apply_linear, apply_swiglu_linear
from tinker_engine.model.lora import LoraBatch
from tinker_engine.model.norm import rms_norm
from tinker_engine.model.rope import RopeTable, rotate
from tinker_engine.model.spec import ModelSpec

Pause = Callable[[], None]
"""Called where a long computation can be left for a moment to do other work."""


class Attend(Protocol):
    def __call__(self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
        """Attention of one layer; keys are already rotated. Returns [T, H·E]."""
        ...


@dataclass(frozen=True)
class Layer:
    attn_norm: Tensor
    qkv: FrozenLinear
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: FrozenLinear
    mlp_norm: Tensor
    gate_up: FrozenLinear
    down: FrozenLinear


class Decoder:
    def __init__(self, spec: ModelSpec, weights: MutableMapping[str, Tensor]):
        """Takes the tensors out of `weights` (Hugging Face names) as it fuses them, to hold each once."""
        self.spec = spec
        self.embedding = weights.pop("model.embed_tokens.weight")
        self.device, self.dtype = self.embedding.device, self.embedding.dtype
        self.layers = [_layer(weights, f"model.layers.{i}", spec) for i in range(spec.num_layers)]
        self.norm = weights.pop("model.norm.weight")
        self.head = FrozenLinear(self.embedding if spec.tied_embeddings else weights.pop("lm_head.weight"))
        self.rope = RopeTable(spec.rope, spec.head_dim, self.device, self.dtype)

    def hidden(
        self,
        tokens_T: Tensor,
        positions_T: Tensor,
        longest: int,
        attend: Attend,
        lora: LoraBatch,
        *,
        recompute: bool = False,
        pause: Pause | None = None,
    ) -> Tensor:
        """Final normed states [T, D]; `longest` is one more than the largest position.

        `recompute` keeps only each layer's input for the backward pass: less memory, a third more work.
        `pause` is called after every layer, in this pass and again in the backward pass.
        """
        x_TD = F.embedding(tokens_T, self.embedding)
        cos, sin = self.rope.at(positions_T, longest)
        for i in range(self.spec.num_layers):
            if recompute:
                x_TD = checkpoint(self._layer, i, x_TD, cos, sin, attend, lora, use_reentrant=False)
            else:
                x_TD = self._layer(i, x_TD, cos, sin, attend, lora)
            if pause is not None:
                pause()
                # Outside of what is recomputed, or the backward pass would pause in the middle of a layer.
                x_TD = _PauseBackward.apply(x_TD, pause) if x_TD.requires_grad else x_TD
        return rms_norm(x_TD, self.norm, self.spec.norm_eps)

    def _layer(
        self, i: int, x_TD: Tensor, cos: Tensor, sin: Tensor, attend: Attend, lora: LoraBatch
    ) -> Tensor:
        spec, layer = self.spec, self.layers[i]
        normed = rms_norm(x_TD, layer.attn_norm, spec.norm_eps)
        qkv = apply_linear(normed, layer.qkv, lora.at(f"{i}.qkv"))
        heads = qkv.unflatten(-1, (-1, spec.head_dim))
        qk, v_TGE = heads.split((spec.num_heads + spec.num_kv_heads, spec.num_kv_heads), dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = qk.split((spec.num_heads, spec.num_kv_heads), dim=1)
            q = rms_norm(q, layer.q_norm, spec.norm_eps)
            qk = torch.cat((q, rms_norm(k, layer.k_norm, spec.norm_eps)), dim=1)
        q_THE, k_TGE = rotate(qk, cos, sin).split((spec.num_heads, spec.num_kv_heads), dim=1)
        seen = attend(i, q_THE, k_TGE, v_TGE)
        x_TD = x_TD + apply_linear(seen, layer.output, lora.at(f"{i}.o"))
        normed = rms_norm(x_TD, layer.mlp_norm, spec.norm_eps)
        gate_up = apply_linear(normed, layer.gate_up, lora.at(f"{i}.gate_up"))
        return x_TD + apply_swiglu_linear(gate_up, layer.down, lora.at(f"{i}.down"))

    def logits(self, hidden_TD: Tensor, lora: LoraBatch) -> Tensor:
        """[T, V] without a graph. For a handful of rows: the trainer's head works in chunks."""
        with torch.no_grad():
            return apply_linear(hidden_TD, self.head, lora.at("head"))


class _PauseBackward(torch.autograd.Function):
    """The identity, whose backward pass calls `pause`."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, pause: Pause):
        ctx.pause = pause
        return x_TD.view_as(x_TD)

    @staticmethod
    def backward(ctx: Any, d_x_TD: Tensor):
        ctx.pause()
        return d_x_TD, None


def _layer(weights: MutableMapping[str, Tensor], prefix: str, spec: ModelSpec) -> Layer:
    attn, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"

    def fused(bias: bool, *names: str) -> FrozenLinear:
        weight_NK = _stack([weights.pop(f"{name}.weight") for name in names])
        return FrozenLinear(
            weight_NK, _stack([weights.pop(f"{name}.bias") for name in names]) if bias else None
        )

    return Layer(
        attn_norm=weights.pop(f"{prefix}.input_layernorm.weight"),
        qkv=fused(spec.qkv_bias, f"{attn}.q_proj", f"{attn}.k_proj", f"{attn}.v_proj"),
        q_norm=weights.pop(f"{attn}.q_norm.weight") if spec.qk_norm else None,
        k_norm=weights.pop(f"{attn}.k_norm.weight") if spec.qk_norm else None,
        output=fused(spec.output_bias, f"{attn}.o_proj"),
        mlp_norm=weights.pop(f"{prefix}.post_attention_layernorm.weight"),
        gate_up=fused(spec.mlp_bias, f"{mlp}.gate_proj", f"{mlp}.up_proj"),
        down=fused(spec.mlp_bias, f"{mlp}.down_proj"),
    )


def _stack(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if len(parts) > 1 else parts[0].contiguous()
