"""Tiny random models of the supported families, and the files a user may have of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = "{% for m in messages %}{{ '<|im_start|>' + m['content'] + '<|im_end|>' }}{% endfor %}"

_FAMILIES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}

MakeModel = Callable[..., PreTrainedModel]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for models, and no hub cache."""
    folder = tmp_path / "home"
    monkeypatch.setenv("TINKER_ENGINE_HOME", str(folder))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return folder


@pytest.fixture(scope="session")
def byte_level() -> tokenizers.Tokenizer:
    """A real byte-level BPE with SmolLM2's split, trained on a few lines."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the cat sat on the mat and the dog ate the hat at 1 or 2"] * 4, trainer)
    return tokenizer


@pytest.fixture
def make_model() -> MakeModel:
    def make(family: str = "llama", **changes: Any) -> PreTrainedModel:
        config_class, model_class = _FAMILIES[family]
        settings: dict[str, Any] = {
            "vocab_size": 320,  # more rows than tokens, as real models have
            "hidden_size": 64,  # widths are multiples of 32, the block of the quantised formats
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 128,
            "tie_word_embeddings": True,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 2,
        }
        torch.manual_seed(0)
        model = model_class(config_class(**(settings | changes)))
        for parameter in model.parameters():  # biases and norms too, or their mix-up would go unseen
            torch.nn.init.normal_(parameter, std=0.1)
        return model.eval()

    return make


@pytest.fixture
def make_folder(tmp_path: Path, byte_level: tokenizers.Tokenizer) -> Callable[..., Path]:
    def make(model: PreTrainedModel, shard: str = "1GB") -> Path:
        folder = tmp_path / "model"
        model.save_pretrained(folder, max_shard_size=shard)
        byte_level.save(str(folder / "tokenizer.json"))
        return folder

    return make


@pytest.fixture
def model_folder(make_model: MakeModel, make_folder: Callable[..., Path]) -> Path:
    return make_folder(make_model())


class GGUFFile:
    """A GGUF file of a model, written as llama.cpp's converter does. Change `metadata` and then `write`."""

    def __init__(self, model: PreTrainedModel, tokenizer: tokenizers.Tokenizer):
        config: Any = model.config
        self.architecture: str = config.model_type
        self.metadata = _metadata(config) | _tokenizer_metadata(tokenizer)
        self.tensors = _tensors(model, config)
        self.formats: dict[str, str] = {}  # of single tensors

    def write(self, path: Path, matrices: str = "F32") -> Path:
        writer = gguf.GGUFWriter(path, self.architecture)
        for key, value in self.metadata.items():
            writer.add_key_value(key, value, _value_type(value), _element_type(value))
        for name, values in self.tensors.items():
            kind = gguf.GGMLQuantizationType[self.formats.get(name, matrices if values.ndim > 1 else "F32")]
            data = gguf.quants.quantize(values, kind)
            writer.add_tensor(name, data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


@pytest.fixture
def make_gguf(make_model: MakeModel, byte_level: tokenizers.Tokenizer) -> Callable[..., GGUFFile]:
    def make(model: PreTrainedModel | None = None) -> GGUFFile:
        return GGUFFile(model or make_model(), byte_level)

    return make


def _metadata(config: Any) -> dict[str, Any]:
    return {
        f"{config.model_type}.{key}": value
        for key, value in {
            "context_length": config.max_position_embeddings,
            "embedding_length": config.hidden_size,
            "block_count": config.num_hidden_layers,
            "feed_forward_length": config.intermediate_size,
            "attention.head_count": config.num_attention_heads,
            "attention.head_count_kv": config.num_key_value_heads,
            "attention.key_length": config.head_dim,
            "attention.value_length": config.head_dim,
            "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
            "rope.freq_base": config.rope_parameters["rope_theta"],
        }.items()
        if value is not None
    }


def _tokenizer_metadata(tokenizer: tokenizers.Tokenizer) -> dict[str, Any]:
    vocab = tokenizer.get_vocab()
    tokens = sorted(vocab, key=vocab.__getitem__)
    padding = [f"[PAD{i}]" for i in range(len(tokens), 320)]
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens + padding,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(tokens) - 3) + [5] * len(padding),
        "tokenizer.ggml.merges": [" ".join(merge) for merge in merges],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _tensors(model: PreTrainedModel, config: Any) -> dict[str, np.ndarray[Any, Any]]:
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[config.model_type.upper()], config.num_hidden_layers)
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        if config.model_type == "llama" and ".q_proj." in name:
            values = permute(values, config.num_attention_heads)
        if config.model_type == "llama" and ".k_proj." in name:
            values = permute(values, config.num_key_value_heads)
        tensors[names.get_name(name, (".weight", ".bias")) or name] = np.ascontiguousarray(values)
    return tensors


def permute(rows: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """llama.cpp's order: row j of a head's first half, then row j of its second half, for each j."""
    width = rows.shape[0] // heads
    order = [
        h * width + half * width // 2 + j for h in range(heads) for j in range(width // 2) for half in (0, 1)
    ]
    return rows[order]


def _value_type(value: Any) -> gguf.GGUFValueType:
    if isinstance(value, int) and not isinstance(value, bool):
        return gguf.GGUFValueType.UINT32
    return gguf.GGUFValueType.get_type(value)


def _element_type(value: Any) -> gguf.GGUFValueType | None:
    return _value_type(value[0]) if isinstance(value, list) else None
