"""Turn a GGUF file into a Hugging Face model folder, losing nothing of what the file holds.

1. Metadata becomes config.json and generation_config.json.
2. Tensors get their Hugging Face names and are dequantised. Float16 and bfloat16 tensors keep
   their format; everything else is written as float32, for a dequantised value (scale times
   integer plus offset) rarely fits in sixteen bits.
3. Files of the llama architecture store the rows of q_proj and k_proj in the order in which
   llama.cpp rotates pairs; that reordering is undone.
4. The tokenizer is rebuilt from the token list, the merges and the name of the text split.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from tinker_engine.errors import InputError, ModelError
from tinker_engine.model import gguf_tokenizer
from tinker_engine.model.load import StoredTensor, check_stored
from tinker_engine.model.spec import ModelSpec
from tinker_engine.model.staging import locked, staged

Array = npt.NDArray[Any]

_MODEL_CLASS = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}

_TOP_LEVEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}

_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

# Metadata that changes what the model computes and that has no place in a config of these classes.
_UNSUPPORTED_KEYS = ("expert_count", "attention.sliding_window", "rope.scale_linear")


def convert(gguf_path: Path, out_folder: Path) -> Path:
    """Write the model of `gguf_path` as `out_folder`, whole or not at all."""
    if out_folder.exists():
        raise InputError("out_folder", f"{out_folder} exists already; name a folder that does not")
    with locked(out_folder), staged(out_folder) as staging:
        convert_into(gguf_path, staging)
    return out_folder


def convert_into(gguf_path: Path, folder: Path) -> None:
    """Fill an existing folder. Whoever calls this sees to it that no one reads it half full."""
    source = _Source.open(gguf_path)
    tokenizer = gguf_tokenizer.rebuild(source.metadata, where=str(gguf_path))
    config = {**source.config(), **tokenizer.special_ids}
    if tokenizer.size > config["vocab_size"]:
        raise ModelError(f"{gguf_path}: {tokenizer.size} tokens, but only {config['vocab_size']} embeddings")
    tensors = source.tensors()
    stored = {tensor.name: StoredTensor(gguf_path, tensor.shape, tensor.dtype) for tensor in tensors}
    check_stored(gguf_path, stored, ModelSpec.from_config(config))
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", tokenizer.generation_config)
    _write_json(folder / "tokenizer_config.json", tokenizer.config)
    _write_json(folder / "tokenizer.json", tokenizer.definition)
    _write_safetensors(folder / "model.safetensors", tensors)


@dataclass(frozen=True)
class _Tensor:
    """One tensor under its new name, read only when its turn to be written comes."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # as safetensors spells it
    read: Callable[[], Array]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * (4 if self.dtype == "F32" else 2)


@dataclass(frozen=True)
class _Source:
    path: Path
    metadata: Mapping[str, Any]
    stored: Mapping[str, gguf.ReaderTensor]
    architecture: str

    @classmethod
    def open(cls, path: Path) -> "_Source":
        try:
            reader = gguf.GGUFReader(path)
            metadata = {name: field.contents() for name, field in reader.fields.items()}
        except FileNotFoundError as error:
            raise ModelError(f"{path} does not exist") from error
        except (ValueError, IndexError, KeyError, OverflowError, MemoryError) as error:
            raise ModelError(f"{path} is not a whole GGUF file ({error}); download it again") from error
        architecture = metadata.get("general.architecture", "(none named)")
        if architecture not in _MODEL_CLASS:
            raise ModelError(
                f"{path}: architecture {architecture!r} is not supported; "
                f"supported are: {', '.join(_MODEL_CLASS)}"
            )
        return cls(path, metadata, {tensor.name: tensor for tensor in reader.tensors}, architecture)

    def config(self) -> dict[str, Any]:
        """A Hugging Face config.json, without the special token ids."""
        for key in _UNSUPPORTED_KEYS:
            if self._get(key):
                raise ModelError(f"{self.path}: models with {self.architecture}.{key} are not supported")
        hidden, heads = self._integer("embedding_length"), self._integer("attention.head_count")
        head_dim = self._integer("attention.key_length", hidden // heads)
        for key in ("attention.value_length", "rope.dimension_count"):
            if self._get(key, head_dim) != head_dim:
                raise ModelError(f"{self.path}: {key} {self._get(key)} differs from the head size {head_dim}")
        theta = self._number("rope.freq_base", 10_000.0)
        return {
            "architectures": [_MODEL_CLASS[self.architecture]],
            "model_type": self.architecture,
            "vocab_size": int(self._tensor("token_embd.weight").shape[1]),
            "hidden_size": hidden,
            "intermediate_size": self._integer("feed_forward_length"),
            "num_hidden_layers": self._integer("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._integer("attention.head_count_kv", heads),
            "head_dim": head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": self._integer("context_length"),
            "rms_norm_eps": self._number("attention.layer_norm_rms_epsilon"),
            "rope_theta": theta,
            "rope_scaling": self._rope_scaling(theta, head_dim),
            "tie_word_embeddings": "output.weight" not in self.stored,
            # Qwen2 always has these biases, whatever its config says.
            "attention_bias": "blk.0.attn_q.bias" in self.stored and self.architecture != "qwen2",
            "mlp_bias": "blk.0.ffn_gate.bias" in self.stored,
            "torch_dtype": self._torch_dtype(),
        }

    def tensors(self) -> list[_Tensor]:
        return [
            self._converted(tensor) for name, tensor in self.stored.items() if name != "rope_freqs.weight"
        ]

    def _converted(self, tensor: gguf.ReaderTensor) -> _Tensor:
        name = _hugging_face_name(tensor.name)
        if name is None:
            raise ModelError(
                f"{self.path}: no place for the tensor {tensor.name!r} in a {self.architecture} model"
            )
        heads = self._permuted_heads(name)

        def read() -> Array:
            values = _values(tensor)
            return values if heads is None else _undo_permutation(values, heads)

        kind = tensor.tensor_type
        if not _can_dequantise(kind):
            raise ModelError(
                f"{self.path}: {tensor.name} is quantised as {kind.name}, which is not supported"
            )
        shape = tuple(int(n) for n in reversed(tensor.shape))  # GGUF lists the fastest axis first
        return _Tensor(name, shape, kind.name if kind.name in ("F16", "BF16") else "F32", read)

    def _permuted_heads(self, name: str) -> int | None:
        if self.architecture != "llama":
            return None
        if ".q_proj." in name:
            return self._integer("attention.head_count")
        if ".k_proj." in name:
            return self._integer("attention.head_count_kv", self._integer("attention.head_count"))
        return None

    def _rope_scaling(self, theta: float, head_dim: int) -> dict[str, Any] | None:
        if (kind := self._get("rope.scaling.type", "none")) == "linear":
            return {"rope_type": "linear", "factor": self._number("rope.scaling.factor")}
        if kind != "none":
            raise ModelError(
                f"{self.path}: rope scaling {kind!r} is not supported; supported are: linear, llama3"
            )
        if "rope_freqs.weight" not in self.stored:
            return None
        # The file holds only the resulting divisors. Every Llama 3 release made them with the same three
        # numbers and its own factor, which is the largest divisor; equality proves the guess.
        divisors = _values(self.stored["rope_freqs.weight"])
        scaling = {
            "rope_type": "llama3",
            "factor": _shortest(divisors.max()),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        if not np.allclose(divisors, _llama3_divisors(theta, head_dim, scaling), rtol=1e-5, atol=0):
            raise ModelError(
                f"{self.path}: its rope_freqs.weight is none of Llama 3's; use the model's safetensors folder"
            )
        return scaling

    def _torch_dtype(self) -> str:
        kinds = {t.tensor_type.name for t in self.stored.values() if len(t.shape) > 1}
        return {frozenset({"F16"}): "float16", frozenset({"BF16"}): "bfloat16"}.get(
            frozenset(kinds), "float32"
        )

    def _tensor(self, name: str) -> gguf.ReaderTensor:
        if name not in self.stored:
            raise ModelError(f"{self.path}: the tensor {name!r} is missing")
        return self.stored[name]

    def _get(self, key: str, default: Any = None) -> Any:
        return self.metadata.get(f"{self.architecture}.{key}", default)

    def _integer(self, key: str, default: int | None = None) -> int:
        if not isinstance(value := self._get(key, default), int):
            raise ModelError(f"{self.path}: {self.architecture}.{key} must be one integer, got {value!r}")
        return value

    def _number(self, key: str, default: float | None = None) -> float:
        if not isinstance(value := self._get(key, default), int | float):
            raise ModelError(f"{self.path}: {self.architecture}.{key} must be a number, got {value!r}")
        return _shortest(value)


def _hugging_face_name(name: str) -> str | None:
    if name in _TOP_LEVEL:
        return _TOP_LEVEL[name]
    match name.split("."):
        case ["blk", layer, part, "weight" | "bias" as kind] if part in _IN_LAYER:
            return f"model.layers.{layer}.{_IN_LAYER[part]}.{kind}"
    return None


def _values(tensor: gguf.ReaderTensor) -> Array:
    if tensor.tensor_type.name == "BF16":
        return tensor.data.view(np.uint16)  # numpy has no bfloat16: carry the bits
    if tensor.tensor_type.name in ("F32", "F16"):
        return tensor.data
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type)


def _can_dequantise(kind: gguf.GGMLQuantizationType) -> bool:
    _, bytes_per_block = gguf.GGML_QUANT_SIZES[kind]
    try:
        gguf.quants.dequantize(np.zeros((1, bytes_per_block), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _undo_permutation(rows: Array, heads: int) -> Array:
    """From pairs (0, 1), (2, 3), ... back to halves (0, D/2), (1, D/2 + 1), ... within each head."""
    width = rows.shape[0] // heads
    return rows.reshape(heads, width // 2, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _llama3_divisors(theta: float, head_dim: int, scaling: Mapping[str, Any]) -> Array:
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((scaling["original_max_position_embeddings"] / wavelengths - low) / (high - low), 0, 1)
    return 1 / ((1 - smooth) / scaling["factor"] + smooth)


def _shortest(value: float) -> float:
    """The plainest decimal that is this float32: 1e-05 rather than 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    present = {key: value for key, value in content.items() if value is not None}
    path.write_text(json.dumps(present, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_safetensors(path: Path, tensors: list[_Tensor]) -> None:
    """One tensor in memory at a time, where the safetensors package would want all of them."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor.num_bytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for tensor in _with_progress(tensors, total=end):
            file.write(np.ascontiguousarray(tensor.read()).data)


def _with_progress(tensors: list[_Tensor], total: int) -> Iterator[_Tensor]:
    # disable=None: a bar on a terminal, nothing in a log
    with tqdm(total=total, desc="converting", unit="B", unit_scale=True, disable=None) as bar:
        for tensor in tensors:
            yield tensor
            bar.update(tensor.num_bytes)
