"""What the decoder needs to know about a model, read from a Hugging Face `config.json`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tinker_engine.errors import ModelError


@dataclass(frozen=True)
class RopeSpec:
    """Rotary position embedding. `kind` "llama3" uses the four factors; "linear" only `factor`."""

    theta: float = 10_000.0
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


@dataclass(frozen=True)
class ModelSpec:
    """The shape of one decoder-only transformer of a supported family."""

    architecture: str  # the class name in config.json, e.g. "LlamaForCausalLM"
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_context: int
    rope: RopeSpec
    norm_eps: float
    tied_embeddings: bool
    qkv_bias: bool = False
    output_bias: bool = False  # bias of the attention output projection
    mlp_bias: bool = False
    qk_norm: bool = False  # per-head RMSNorm of queries and keys before rotation

    @property
    def q_width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.num_kv_heads * self.head_dim

    @classmethod
    def from_folder(cls, folder: Path) -> "ModelSpec":
        path = folder / "config.json"
        if not path.is_file():
            raise ModelError(f"{folder} has no config.json: it is not a Hugging Face model folder")
        try:
            config = json.loads(path.read_text())
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ModelError(f"{path} is not valid JSON: {error}") from error
        if not isinstance(config, dict):
            raise ModelError(f"{path} holds a {type(config).__name__}, not the settings of a model")
        return cls.from_config(config)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "ModelSpec":
        """Read a config of either layout: `rope_theta`/`rope_scaling` or `rope_parameters`."""
        architecture = _architecture(config)
        try:
            spec = _common(config, architecture)
        except KeyError as error:
            raise ModelError(f"config.json of {architecture} lacks the field {error.args[0]!r}") from error
        _check(spec, config)
        return _FAMILIES[architecture](spec, config)


def _common(config: Mapping[str, Any], architecture: str) -> ModelSpec:
    hidden, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
    return ModelSpec(
        architecture=architecture,
        vocab_size=_size(config, "vocab_size"),
        hidden_size=hidden,
        num_layers=_size(config, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        intermediate_size=_size(config, "intermediate_size"),
        max_context=_size(config, "max_position_embeddings"),
        rope=_rope(config),
        norm_eps=config.get("rms_norm_eps", 1e-6),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
    )


def _size(config: Mapping[str, Any], name: str) -> int:
    value = config[name]
    if not isinstance(value, int) or value < 1:
        raise ModelError(f"config.json: {name} must be a positive whole number, got {value!r}")
    return value


def _llama(spec: ModelSpec, config: Mapping[str, Any]) -> ModelSpec:
    bias = bool(config.get("attention_bias", False))
    return replace(spec, qkv_bias=bias, output_bias=bias, mlp_bias=bool(config.get("mlp_bias", False)))


def _qwen2(spec: ModelSpec, config: Mapping[str, Any]) -> ModelSpec:
    spec = replace(spec, qkv_bias=True)
    return _within_window(spec, config) if config.get("use_sliding_window") else spec


def _qwen3(spec: ModelSpec, config: Mapping[str, Any]) -> ModelSpec:
    bias = bool(config.get("attention_bias", False))
    spec = replace(spec, qk_norm=True, qkv_bias=bias, output_bias=bias)
    return _within_window(spec, config) if config.get("use_sliding_window") else spec


def _within_window(spec: ModelSpec, config: Mapping[str, Any]) -> ModelSpec:
    """Inside its first window a sliding-window model is a plain causal one; we serve just that much."""
    window = config.get("sliding_window")
    return replace(spec, max_context=min(spec.max_context, window)) if window else spec


# One line per architecture: what it adds to the common fields.
_FAMILIES = {
    "LlamaForCausalLM": _llama,  # Llama 3.x, SmolLM2
    "MistralForCausalLM": _within_window,
    "Qwen2ForCausalLM": _qwen2,  # Qwen2.5
    "Qwen3ForCausalLM": _qwen3,
}

SUPPORTED_ARCHITECTURES = tuple(_FAMILIES)


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures") or [f"(no architectures; model_type {config.get('model_type')!r})"]
    for name in names:
        if name in _FAMILIES:
            return name
    raise ModelError(f"{', '.join(names)} is not supported; supported are: {', '.join(_FAMILIES)}")


def _rope(config: Mapping[str, Any]) -> RopeSpec:
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = scaling.get("rope_theta") or config.get("rope_theta") or 10_000.0
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return RopeSpec(theta=theta)
    if kind == "linear":
        return RopeSpec(theta=theta, kind="linear", factor=scaling["factor"])
    if kind == "llama3":
        return RopeSpec(
            theta=theta,
            kind="llama3",
            factor=scaling["factor"],
            low_freq_factor=scaling["low_freq_factor"],
            high_freq_factor=scaling["high_freq_factor"],
            original_context=scaling["original_max_position_embeddings"],
        )
    raise ModelError(f"rope scaling {kind!r} is not supported; supported are: default, linear, llama3")


def _check(spec: ModelSpec, config: Mapping[str, Any]) -> None:
    if (activation := config.get("hidden_act", "silu")) != "silu":
        raise ModelError(f"hidden_act {activation!r} is not supported; supported is: silu")
    if (rotary := config.get("partial_rotary_factor", 1.0)) != 1.0:
        raise ModelError(f"partial_rotary_factor {rotary} is not supported; supported is: 1.0")
    if spec.num_heads % spec.num_kv_heads:
        raise ModelError(
            f"num_attention_heads {spec.num_heads} is no multiple of num_key_value_heads {spec.num_kv_heads}"
        )
