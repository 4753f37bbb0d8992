"""Write a Hugging Face folder of the llama family as GGUF with float16 weights, for llama.cpp.

Without a tokenizer: only token ids go in and out.
"""

from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
from safetensors import safe_open

from tinker_engine.model.spec import ModelSpec


def write(folder: Path, path: Path) -> None:
    """Whole or not at all. Norms stay float32: llama.cpp asks for it."""
    spec = ModelSpec.from_folder(folder)
    unfinished = path.with_suffix(".part")
    writer = gguf.GGUFWriter(unfinished, "llama")
    _add_metadata(writer, spec)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, spec.num_layers)
    for name, values in _tensors(folder):
        if ".q_proj." in name:
            values = _in_rotated_pairs(values, spec.num_heads)
        if ".k_proj." in name:
            values = _in_rotated_pairs(values, spec.num_kv_heads)
        place = names.get_name(name, try_suffixes=(".weight",))
        assert place is not None, f"{name} is no tensor of a llama"
        writer.add_tensor(place, values.astype(np.float16 if values.ndim > 1 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.rename(path)


def _add_metadata(writer: gguf.GGUFWriter, spec: ModelSpec) -> None:
    writer.add_context_length(spec.max_context)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_block_count(spec.num_layers)
    writer.add_feed_forward_length(spec.intermediate_size)
    writer.add_head_count(spec.num_heads)
    writer.add_head_count_kv(spec.num_kv_heads)
    writer.add_layer_norm_rms_eps(spec.norm_eps)
    writer.add_rope_freq_base(spec.rope.theta)
    writer.add_rope_dimension_count(spec.head_dim)
    writer.add_vocab_size(spec.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_tokenizer_model("no_vocab")


def _tensors(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:  # numpy knows no bfloat16
            for name in file.keys():  # noqa: SIM118  it is no dictionary
                yield name, file.get_tensor(name).float().numpy()


def _in_rotated_pairs(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a head as neighbours that are rotated together; in the other format they are half a head apart."""
    rows, width = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width)
