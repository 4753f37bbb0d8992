"""A Llama whose parameters are all trained, fast on a CPU, under Hugging Face's parameter names.

Shapes: B rows, T tokens, N positions that are trained on, H query heads, K key/value heads, D width of a head,
W width of the model, I width inside the MLP.
"""

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx


@dataclass(frozen=True)
class Shape:
    vocab_size: int = 1024
    hidden_size: int = 192
    layers: int = 6
    heads: int = 6
    kv_heads: int = 3
    head_dim: int = 32
    intermediate_size: int = 512
    max_context: int = 1024
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5

    def hf_config(self) -> dict[str, Any]:
        """The content of `config.json` but for its special tokens."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate_size,
            "max_position_embeddings": self.max_context,
            "rope_theta": self.rope_theta,
            "rope_scaling": None,
            "rms_norm_eps": self.norm_eps,
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "mlp_bias": False,
            "pretraining_tp": 1,
            "initializer_range": 0.02,
            "tie_word_embeddings": True,
            "use_cache": True,
            "torch_dtype": "float32",
        }


def tune_cpu(threads: int) -> None:
    """Process-wide settings for training; call once, before the first step."""
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)


class SwiGLU(torch.autograd.Function):
    """silu(gate)·up on the two halves of one matrix; autograd would copy both halves of its gradient together."""

    @staticmethod
    def forward(ctx: FunctionCtx, gate_up_BT2I: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up_BT2I)
        gate_BTI, up_BTI = gate_up_BT2I.chunk(2, -1)
        return F.silu(gate_BTI).mul_(up_BTI)

    @staticmethod
    def backward(ctx: Any, grad_BTI: Tensor) -> Tensor:
        (gate_up_BT2I,) = ctx.saved_tensors
        gate_BTI, up_BTI = gate_up_BT2I.chunk(2, -1)
        grad_gate_up_BT2I = torch.empty_like(gate_up_BT2I)
        grad_gate_BTI, grad_up_BTI = grad_gate_up_BT2I.chunk(2, -1)
        torch.mul(F.silu(gate_BTI), grad_BTI, out=grad_up_BTI)
        torch.mul(grad_BTI, up_BTI, out=grad_gate_BTI)
        torch.ops.aten.silu_backward.grad_input(grad_gate_BTI, gate_BTI, grad_input=grad_gate_BTI)
        return grad_gate_up_BT2I


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        q_width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, q_width, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(q_width, shape.hidden_size, bias=False)

    def forward(self, x_BTW: Tensor, rotation_TD: Tensor) -> Tensor:
        (B, T, W), H, K = x_BTW.shape, self.shape.heads, self.shape.kv_heads
        # Rotate-half pairs feature i with i + D/2. Reordering the small weights so that pairs are neighbours turns
        # the rotation of the large activations into one complex product; scores do not depend on the order.
        qk_weight = torch.cat([self.q_proj.weight, self.k_proj.weight])
        qk_weight = qk_weight.view(H + K, 2, -1, W).transpose(1, 2).reshape(-1, W)
        qkv_weight = torch.cat([qk_weight, self.v_proj.weight])
        qkv_BTHD = F.linear(x_BTW, qkv_weight).view(B, T, H + 2 * K, -1)
        qk_BTHD, v_BTKD = qkv_BTHD.split([H + K, K], dim=2)
        qk_BTHD = torch.view_as_complex(qk_BTHD.unflatten(-1, (-1, 2))) * rotation_TD[:T, None]
        q_BTHD, k_BTKD = torch.view_as_real(qk_BTHD).flatten(-2).split([H, K], dim=2)
        y_BHTD = F.scaled_dot_product_attention(
            q_BTHD.transpose(1, 2),
            k_BTKD.transpose(1, 2),
            v_BTKD.transpose(1, 2),
            is_causal=True,
            enable_gqa=True,
        )
        return self.o_proj(y_BHTD.transpose(1, 2).reshape(B, T, -1))


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x_BTW: Tensor) -> Tensor:
        gate_up_BT2I = F.linear(x_BTW, torch.cat([self.gate_proj.weight, self.up_proj.weight]))
        return self.down_proj(cast(Tensor, SwiGLU.apply(gate_up_BT2I)))


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, shape.norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, shape.norm_eps)
        self.mlp = MLP(shape)

    def forward(self, x_BTW: Tensor, rotation_TD: Tensor) -> Tensor:
        x_BTW = x_BTW + self.self_attn(self.input_layernorm(x_BTW), rotation_TD)
        return x_BTW + self.mlp(self.post_attention_layernorm(x_BTW))


class Decoder(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden_size, shape.norm_eps)
        frequency_D = shape.rope_theta ** -(torch.arange(0, shape.head_dim, 2) / shape.head_dim)
        angle_TD = torch.outer(torch.arange(shape.max_context), frequency_D)
        self.register_buffer(
            "rotation_TD", torch.polar(torch.ones_like(angle_TD), angle_TD), persistent=False
        )

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x_BTW = self.embed_tokens(tokens_BT)
        for layer in self.layers:
            x_BTW = layer(x_BTW, self.rotation_TD)
        return self.norm(x_BTW)


class Llama(nn.Module):
    """`state_dict()` is what `LlamaForCausalLM` with `shape.hf_config()` loads; the unembedding is tied."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Decoder(shape)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                # What a layer adds to the residual stream starts small, so that depth does not blow it up.
                adds = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * shape.layers) if adds else 0.02)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Hidden states after the last norm. Rows are padded on the right: causal attention needs no mask."""
        return self.model(tokens_BT)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.model.embed_tokens.weight)


def weighted_loss(network: Llama, tokens_BT: Tensor, targets_BT: Tensor, weights_BT: Tensor) -> Tensor:
    """Weighted mean cross-entropy; positions of weight zero get no logits."""
    trained_N = weights_BT.flatten().nonzero().squeeze(1)
    hidden_NW = network(tokens_BT).flatten(0, 1)[trained_N]
    targets_N, weights_N = targets_BT.flatten()[trained_N], weights_BT.flatten()[trained_N]
    losses_N = F.cross_entropy(network.logits(hidden_NW), targets_N, reduction="none")
    return (losses_N @ weights_N) / weights_N.sum()
