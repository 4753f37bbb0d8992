from typing import Any

import pytest
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from tinker_engine.errors import ModelError
from tinker_engine.model.spec import SUPPORTED_ARCHITECTURES, ModelSpec

LLAMA_31_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}


def test_reads_the_layout_of_published_configs() -> None:
    spec = ModelSpec.from_config(LLAMA_31_8B)
    assert (spec.q_width, spec.kv_width, spec.head_dim) == (4096, 1024, 128)
    assert (spec.rope.kind, spec.rope.theta, spec.rope.factor) == ("llama3", 500_000.0, 8.0)
    assert not spec.tied_embeddings


def test_the_newer_rope_layout_says_the_same() -> None:
    newer = {k: v for k, v in LLAMA_31_8B.items() if not k.startswith("rope")}
    newer["rope_parameters"] = LLAMA_31_8B["rope_scaling"] | {"rope_theta": 500_000.0}
    assert ModelSpec.from_config(newer) == ModelSpec.from_config(LLAMA_31_8B)


@pytest.mark.parametrize("config_class", [LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config])
def test_reads_what_transformers_writes(config_class: Any) -> None:
    config = config_class(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96)
    name = config_class.__name__.replace("Config", "ForCausalLM")
    spec = ModelSpec.from_config(config.to_dict() | {"architectures": [name]})
    assert spec.architecture == name
    assert spec.num_kv_heads == 2


def test_sliding_windows_bound_the_context() -> None:
    config = LLAMA_31_8B | {"architectures": ["MistralForCausalLM"], "sliding_window": 4096}
    assert ModelSpec.from_config(config).max_context == 4096
    qwen = LLAMA_31_8B | {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 4096}
    assert ModelSpec.from_config(qwen | {"use_sliding_window": False}).max_context == 131_072
    assert ModelSpec.from_config(qwen | {"use_sliding_window": True}).max_context == 4096


def test_an_unsupported_architecture_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="GemmaForCausalLM is not supported") as error:
        ModelSpec.from_config(LLAMA_31_8B | {"architectures": ["GemmaForCausalLM"]})
    assert all(name in str(error.value) for name in SUPPORTED_ARCHITECTURES)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"num_attention_heads": 30}, "num_attention_heads"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"hidden_size": None}, "hidden_size"),
        ({"vocab_size": "many"}, "vocab_size"),
    ],
)
def test_what_we_would_compute_wrongly_is_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        ModelSpec.from_config(LLAMA_31_8B | change)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ModelError, match="'intermediate_size'"):
        ModelSpec.from_config({k: v for k, v in LLAMA_31_8B.items() if k != "intermediate_size"})


def test_a_config_that_is_no_object_is_refused(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text("[1, 2]")
    with pytest.raises(ModelError, match=r"config\.json"):
        ModelSpec.from_folder(tmp_path)
