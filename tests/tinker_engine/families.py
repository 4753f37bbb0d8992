"""Small random models of every family, as `transformers` builds them, for tests that compare with it."""

import random
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tinker_engine.model.decoder import Decoder
from tinker_engine.model.spec import ModelSpec

_SMALL: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "attn_implementation": "eager",
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

# One entry per thing that a family or a configuration of it does differently.
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "llama3-rope": (LlamaConfig, LlamaForCausalLM, {"rope_parameters": _LLAMA3_ROPE}),
    "llama-linear-rope": (
        LlamaConfig,
        LlamaForCausalLM,
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}},
    ),
    "llama-biases": (LlamaConfig, LlamaForCausalLM, {"attention_bias": True, "mlp_bias": True}),
    "llama-multi-head": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 6}),
    "smollm2": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True}),
    "qwen2.5": (Qwen2Config, Qwen2ForCausalLM, {"tie_word_embeddings": True}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16}),
    "mistral": (MistralConfig, MistralForCausalLM, {"head_dim": 12, "sliding_window": None}),
}


def make_reference(
    family: str, seed: int = 0, dtype: torch.dtype = torch.float32, **shape: Any
) -> PreTrainedModel:
    """Random weights everywhere: zero biases or unit norms would hide a mix-up."""
    config_class, model_class, changes = FAMILIES[family]
    torch.manual_seed(seed)
    model = model_class(config_class(**(_SMALL | changes | shape)))
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.15)
    return model.to(dtype).eval()


def random_shape(seed: int) -> dict[str, Any]:
    """Widths, heads and depth drawn at random; the head width need not divide the model's."""
    rng = random.Random(seed)
    groups = rng.choice([1, 2, 3])
    return {
        "vocab_size": rng.randrange(20, 200),
        "hidden_size": 4 * rng.randrange(3, 20),
        "intermediate_size": rng.randrange(10, 120),
        "num_hidden_layers": rng.randrange(1, 4),
        "num_attention_heads": groups * rng.choice([1, 2, 4]),
        "num_key_value_heads": groups,
        "head_dim": 2 * rng.randrange(2, 12),
        "tie_word_embeddings": rng.random() < 0.5,
    }


def make_decoder(reference: PreTrainedModel) -> Decoder:
    config = reference.config.to_dict() | {"architectures": [type(reference).__name__]}
    weights = {name: tensor.detach().clone() for name, tensor in reference.state_dict().items()}
    return Decoder(ModelSpec.from_config(config), weights)
